import logging
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from headrace import _native
from headrace._native import Compiled, compiled

HEADER = Path(_native.__file__).with_name("native.h")


def stub(version: int) -> ModuleType:
    module = ModuleType("headrace._native._compiled")
    module.VERSION = version  # type: ignore[attr-defined]
    return module


def test_the_header_and_the_package_are_of_one_version() -> None:
    found = re.search(r"HEADRACE_NATIVE_VERSION (\d+)", HEADER.read_text())

    assert found is not None
    assert int(found[1]) == _native._VERSION


@pytest.mark.skipif(compiled is None, reason="there was no C compiler")
def test_all_that_is_declared_is_compiled() -> None:
    declared = {name for name in vars(Compiled) if not name.startswith("_")}

    assert declared == {name for name in dir(compiled) if not name.startswith("_")} - {"VERSION"}


def test_a_module_of_another_version_is_left_alone_and_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "headrace._native._compiled", stub(_native._VERSION - 1))

    assert _native._load() is None
    assert "install again" in caplog.text


def test_nothing_is_said_where_nothing_was_compiled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "headrace._native._compiled", None)

    with caplog.at_level(logging.INFO):
        assert _native._load() is None
    assert not caplog.records
