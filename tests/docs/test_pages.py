"""The pages say what is true: their Python runs, what they point at exists, the generated ones are current."""

import ast
import importlib
import inspect
import re
import sys
from pathlib import Path
from types import CodeType

import pytest

from tests.docs.blocks import PAGES, ROOT, blocks
from tests.docs.ways import PAGES_WITH_SERVERS

_LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")
_ANCHOR = re.compile(r"\]\((?!https?:)([^)#]*)#([^)]+)\)")
_HEADING = re.compile(r"^#+ (.*)", re.MULTILINE)
_METRIC = re.compile(r"`(headrace_[a-z_]+)`")
_FOLDERS = "src|docs|tests|benchmarks|scripts|examples|deploy|models"
_PATH = re.compile(rf"`((?:{_FOLDERS})/[\w./-]+)`")


def python_blocks() -> list[tuple[str, str]]:
    """Those that need no server; `test_commands.py` has the others."""
    return [(block.name, block.text) for block in blocks("python") if block.page not in PAGES_WITH_SERVERS]


@pytest.mark.integration
@pytest.mark.parametrize("code", [pytest.param(code, id=name) for name, code in python_blocks()])
async def test_the_python_of_a_page_runs(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    compiled = compile(code, "page", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    assert isinstance(compiled, CodeType)
    running = eval(compiled, {"__name__": "page"})
    if inspect.iscoroutine(running):
        await running


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
