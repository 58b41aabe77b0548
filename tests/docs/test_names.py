"""What sentences and tables name exists: flags, environment names, series, imports, values that are JSON."""

import argparse
import re
from dataclasses import fields
from functools import cache

import pytest

from headrace.cli import gateway, serve
from headrace.cli.launch import FLAG_PREFIXES, Sources
from headrace.engine.config import AsyncEngineArgs
from tests.docs.blocks import PAGES_WITH_CODE, ROOT, inline, name_of
from tests.docs.checks import help_of

_COMMANDS = (
    *((name,) for name in ("serve", "gateway", "demo", "replay", "top", "tokenize", "config")),
    *(("keys", name) for name in ("add", "list", "revoke")),
    *(("bench", name) for name in ("tokenization", "loop", "engine", "gateway", "routing", "server", "front", "serve")),
)
_OF_OTHERS = {"--distributed-executor-backend": "vLLM", "--kubeconfig": "kubectl", "--set": "helm"}
_FLAG = re.compile(r"(?<![\w-])--[a-z][\w-]*")
_VARIABLE = re.compile(r"\bHEADRACE_[A-Z0-9_]*[A-Z0-9]\b")
_SELECTOR = re.compile(r"\w+\{[^}]*\}")
_IMPORT = re.compile(r"import headrace|from headrace\S* import [\w, ]+")
_KV_EVENTS = re.compile(r"--kv-events-config '(\{.*\})'")


def inline_of_pages() -> list[tuple[str, str]]:
    return [(name_of(page), text) for page in PAGES_WITH_CODE for text in inline(page.read_text(encoding="utf-8"))]


@cache
def known_flags() -> frozenset[str]:
    programs = [path.read_text(encoding="utf-8") for path in (ROOT / "benchmarks").glob("*.py")]
    return frozenset(
        flag for text in [*(help_of(list(command)) for command in _COMMANDS), *programs] for flag in _FLAG.findall(text)
    )


def test_a_flag_that_a_page_names_is_one_of_a_command() -> None:
    named = {(page, flag) for page, text in inline_of_pages() for flag in _FLAG.findall(text)}
    assert len(named) > 100
    assert sorted((page, flag) for page, flag in named if flag not in known_flags() | _OF_OTHERS.keys()) == []
    assert _OF_OTHERS.keys() <= {flag for _, flag in named}


def test_an_environment_name_on_a_page_is_one_of_a_setting() -> None:
    components = gateway.COMPONENTS | serve.COMPONENTS
    known = {
        f"HEADRACE_{section}_{field.name}".upper() for section, kind in components.items() for field in fields(kind)
    }
    beginnings = {f"HEADRACE_{section}".upper() for section in FLAG_PREFIXES}
    named = {(page, name) for page, text in inline_of_pages() for name in _VARIABLE.findall(text)}
    assert len(named) > 5
    assert sorted((page, name) for page, name in named if name not in known | beginnings) == []


def test_what_a_page_selects_of_a_metric_can_be_read_by_prometheus() -> None:
    parser = pytest.importorskip("promql_parser", reason="needs promql-parser")
    selectors = [text for _, text in inline_of_pages() if _SELECTOR.fullmatch(text)]
    assert selectors
    for selector in selectors:
        parser.parse(selector)  # raises what is wrong


def test_the_form_of_kv_events_that_vllm_takes_is_taken_here_too() -> None:
    found = [value for _, text in inline_of_pages() for value in _KV_EVENTS.findall(text)]
    assert found
    for value in found:
        flags = argparse.Namespace(config=None, model="models/demo", kv_events_config=value)
        engine = Sources(flags, environment={}).resolve(AsyncEngineArgs, section="engine").settings
        assert engine.kv_events_config is not None


def test_imports_within_sentences_work() -> None:
    found = [text for _, text in inline_of_pages() if _IMPORT.fullmatch(text)]
    assert len(found) > 1
    for line in found:
        exec(line, {})
