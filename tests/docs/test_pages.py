"""The pages say what is true: their code runs, their commands and paths exist, the generated ones are current."""

import ast
import importlib
import inspect
import re
import shlex
import sys
from pathlib import Path
from types import CodeType

import pytest

from headrace.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")
_ANCHOR = re.compile(r"\]\((?!https?:)([^)#]*)#([^)]+)\)")
_HEADING = re.compile(r"^#+ (.*)", re.MULTILINE)
_METRIC = re.compile(r"`(headrace_[a-z_]+)`")
_FOLDERS = "src|docs|tests|benchmarks|scripts|examples|deploy|models"
_PATH = re.compile(rf"`((?:{_FOLDERS})/[\w./-]+)`")


def blocks(*languages: str) -> list[tuple[str, str]]:
    """Name and text of every fenced block in one of the languages."""
    return [
        (f"{page.relative_to(ROOT)}-{number}", found[2])
        for page in PAGES
        for number, found in enumerate(_BLOCK.finditer(page.read_text(encoding="utf-8")), start=1)
        if found[1] in languages
    ]


def python_blocks() -> list[tuple[str, str]]:
    """Those that need no server; the quickstart's run in its own test, against those that it starts."""
    return [(name, text) for name, text in blocks("python") if not name.startswith("docs/quickstart")]


def commands() -> list[tuple[str, list[str]]]:
    """Page and words of every call of `headrace` in a block."""
    lines = [
        (name, line.split(" #")[0])
        for name, text in blocks("sh", "")
        for line in text.replace("\\\n", " ").splitlines()
    ]
    calls = [(name, shlex.split(line)) for name, line in lines if re.match(r"\s*(\S*/)?headrace ", line)]
    return [(name, words[1:]) for name, words in calls]


@pytest.mark.integration
@pytest.mark.parametrize("code", [pytest.param(code, id=name) for name, code in python_blocks()])
async def test_the_python_of_a_page_runs(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    compiled = compile(code, "page", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    assert isinstance(compiled, CodeType)
    running = eval(compiled, {"__name__": "page"})
    if inspect.iscoroutine(running):
        await running


@pytest.mark.parametrize(
    "words", [pytest.param(words, id=f"{name}: {' '.join(words[:3])}") for name, words in commands()]
)
def test_a_command_of_a_page_has_the_flags_that_it_names(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    is_nested = words[0] in {"bench", "keys", "config"}
    with pytest.raises(SystemExit) as exited:
        main([*words[: 1 + is_nested], "--help"])
    shown = capsys.readouterr().out
    assert exited.value.code == 0
    assert [word for word in words if word.startswith("--") and word.split("=")[0] not in shown] == []


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES])
def test_what_a_page_points_at_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    linked = [page.parent / target for target in _LINK.findall(text)]
    named = [ROOT / target for target in _PATH.findall(text)]
    assert [str(path) for path in linked + named if not path.exists()] == []


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES])
def test_an_anchor_is_a_heading_of_its_page(page: Path) -> None:
    aimed = [
        ((page.parent / target) if target else page, anchor)
        for target, anchor in _ANCHOR.findall(page.read_text(encoding="utf-8"))
    ]
    assert [(str(target), anchor) for target, anchor in aimed if anchor not in anchors_of(target)] == []


def anchors_of(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = _HEADING.findall(page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_the_readme_leads_to_every_page() -> None:
    readme = ROOT / "README.md"
    linked = {(ROOT / target).resolve() for target in _LINK.findall(readme.read_text(encoding="utf-8"))}
    assert [str(page.relative_to(ROOT)) for page in PAGES if page != readme and page not in linked] == []


def test_a_metric_that_a_page_names_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    write_metrics = importlib.import_module("write_metrics")
    sys.modules.pop("write_metrics")
    known = {one.name for ones in write_metrics.components().values() for one in ones} | write_metrics.sample_names()
    named = {(page.name, name) for page in PAGES for name in _METRIC.findall(page.read_text(encoding="utf-8"))}
    assert sorted((page, name) for page, name in named if name not in known) == []


def test_the_page_of_settings_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    write_settings = importlib.import_module("write_settings")
    sys.modules.pop("write_settings")
    assert write_settings.PAGE.read_text(encoding="utf-8") == write_settings.page(), "run scripts/write_settings.py"
