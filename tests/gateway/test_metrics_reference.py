"""The page of metrics, the rules, the alerts and Grafana's dashboard say what the code counts."""

import importlib
import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

import httpx
import pytest
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from headrace.gateway.telemetry.instruments import Instruments
from headrace.testing.fake_upstream import FakeUpstream
from tests.gateway.support import chat_request, exchange, running_gateway

ROOT = Path(__file__).resolve().parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
_ADDED = frozenset({"instance", "job", "worker"})
"""Labels that Prometheus, or a gateway of several workers, adds to every series."""


@pytest.fixture(scope="module")
def scripts() -> Iterator[Mapping[str, ModuleType]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "scripts"))
        yield {name: importlib.import_module(name) for name in ("write_metrics", "write_grafana")}


@pytest.fixture(scope="module")
def known(scripts: Mapping[str, ModuleType]) -> Mapping[str, frozenset[str]]:
    """The labels of every series that a query may ask for."""
    return {**scripts["write_metrics"].labels_of(), **recorded_labels()}


def rules() -> list[dict[str, object]]:
    files = [yaml.safe_load((PROMETHEUS / name).read_text()) for name in ("rules.yaml", "alerts.yaml")]
    return [rule for file in files for group in file["groups"] for rule in group["rules"]]


def recorded_labels() -> dict[str, frozenset[str]]:
    """By the convention of their names, recorded series keep the label that they begin with."""
    names = [str(rule["record"]) for rule in rules() if "record" in rule]
    return {name: frozenset({name.partition(":")[0]}) - {"fleet"} for name in names}


def queries_of_dashboard() -> list[str]:
    dashboard = json.loads((ROOT / "deploy" / "grafana" / "headrace.json").read_text())
    variables = [str(one["query"]) for one in dashboard["templating"]["list"] if one["type"] == "query"]
    panels = [str(target["expr"]) for panel in dashboard["panels"] for target in panel.get("targets", ())]
    assert len(panels) > 40
    return [re.sub(r"^label_values\((\w+), (\w+)\)$", r"sum by (\2) (\1)", query) for query in variables] + panels


def plain(query: str) -> str:
    """Without Grafana's variables."""
    return (
        re.sub(r"\$__(rate_interval|range)", "5m", query).replace('"$instance"', '".*"').replace('"$endpoint"', '".*"')
    )


def used_names(query: str) -> dict[str, set[str]]:
    """The series that a query asks for, each with the labels that are matched or kept of it."""
    query = plain(query)
    kept = {label.strip() for group in re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", query) for label in group.split(",")}
    kept -= {""}
    without_strings = re.sub(r'"[^"]*"', '""', query)
    without_groups = re.sub(r"\b(by|on|group_left|without)\s*\([^)]*\)", " ", without_strings)
    names: dict[str, set[str]] = {}
    for name, matchers in re.findall(
        r"\b([a-z_]\w*(?::\w+)+|(?:headrace|process|vllm)\w*)(?:\{([^}]*)\})?", without_groups
    ):
        names.setdefault(name, set()).update(re.findall(r"(\w+)\s*(?:=~|!=|!~|=)", matchers))
    assert names, query
    return {name: labels | kept for name, labels in names.items()}


def all_queries() -> list[str]:
    return [str(rule["expr"]) for rule in rules()] + queries_of_dashboard()


def test_the_page_of_metrics_is_current(scripts: Mapping[str, ModuleType]) -> None:
    write_metrics = scripts["write_metrics"]
    assert write_metrics.PAGE.read_text(encoding="utf-8") == write_metrics.page(), "run scripts/write_metrics.py"


def test_grafanas_dashboard_is_current(scripts: Mapping[str, ModuleType]) -> None:
    write_grafana = scripts["write_grafana"]
    assert write_grafana.FILE.read_text(encoding="utf-8") == write_grafana.text(), "run scripts/write_grafana.py"


def test_metrics_are_named_by_the_conventions(scripts: Mapping[str, ModuleType]) -> None:
    own = [one for ones in scripts["write_metrics"].components().values() for one in ones if "headrace" in one.name]

    assert [one.name for one in own if (one.kind == "counter") is not one.name.endswith("_total")] == []
    assert [one.name for one in own if re.search(r"_(ms|us|kb|percent)(_|$)", one.name)] == []
    assert [one.name for one in own if len(one.text) < 5 or not re.fullmatch(r"[a-z][a-z0-9_]*", one.name)] == []
    assert [one.name for one in own if {"key", "request_id", "user", "prompt", "le"} & set(one.labels)] == []


@pytest.mark.parametrize("query", all_queries(), ids=lambda query: " ".join(query.split())[:60])
def test_a_query_asks_for_series_and_labels_that_exist(query: str, known: Mapping[str, frozenset[str]]) -> None:
    used = used_names(query)
    assert used.keys() - known.keys() == set()
    some = frozenset().union(*(known[name] for name in used)) | _ADDED
    assert {label for labels in used.values() for label in labels} - some == set()


@pytest.mark.parametrize("query", all_queries(), ids=lambda query: " ".join(query.split())[:60])
def test_a_query_can_be_read_by_prometheus(query: str) -> None:
    parser = pytest.importorskip("promql_parser", reason="needs promql-parser")

    parser.parse(plain(query))  # raises what is wrong


def test_promtool_finds_the_alerts_as_their_tests_say() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("needs promtool on the PATH")
    done = subprocess.run(
        [promtool, "test", "rules", str(PROMETHEUS / "tests.yaml")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_its_section_in_the_runbook() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    alerts = [str(rule["alert"]) for rule in rules() if "alert" in rule]

    assert len(alerts) == len(set(alerts)) > 10
    assert [name for name in alerts if f"### {name}\n" not in page] == []
    assert all(f"#{rule['alert'].lower()}" in rule["annotations"]["runbook"] for rule in rules() if "alert" in rule)


@pytest.mark.integration
async def test_a_running_gateway_shows_nothing_that_the_page_leaves_out(scripts: Mapping[str, ModuleType]) -> None:
    async with FakeUpstream() as upstream, running_gateway(upstream, admin_port=0) as gateway:
        await exchange(gateway, chat_request())
        async with httpx.AsyncClient() as client:
            shown = (await client.get(f"{gateway.admin_url}/metrics")).text
    families = {
        family.name + ("_total" if family.type == "counter" else "") for family in text_string_to_metric_families(shown)
    }
    listed = {one.name for ones in scripts["write_metrics"].components().values() for one in ones}
    assert {name for name in families - listed if not name.endswith("_created")} == set()
    assert "headrace_gateway_request_seconds" in families


def test_an_endpoint_that_is_gone_has_no_series() -> None:
    registry = CollectorRegistry()
    instruments = Instruments(registry)
    for name in ("http://a", "http://b"):
        instruments.attempts.add(name, "2xx")
        instruments.endpoint_prompt_tokens.add(name, number=5)
    instruments.healthy.replace({("http://b",): 1.0})
    instruments.keep_endpoints(["http://b"])

    samples = [sample for family in registry.collect() for sample in family.samples]
    assert {sample.labels["endpoint"] for sample in samples if "endpoint" in sample.labels} == {"http://b"}
    assert registry.get_sample_value("headrace_gateway_attempts_total", {"endpoint": "http://b", "outcome": "2xx"}) == 1
