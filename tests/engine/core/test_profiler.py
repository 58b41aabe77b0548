"""A profile of an engine's steps is a trace file that Perfetto opens, and has an end."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import EngineError, UnsupportedError
from headrace.testing.core_driver import CoreDriver, add_request

MakeDriver = Callable[..., CoreDriver]


def events_of(path: str) -> list[dict[str, Any]]:
    assert path.endswith(".pt.trace.json.gz")
    with gzip.open(path, "rt") as file:
        events: list[dict[str, Any]] = json.load(file)["traceEvents"]
    return events


def run_some(driver: CoreDriver, request_id: str = "a") -> None:
    driver.add(add_request(request_id, [5, 6, 7], max_tokens=4))
    driver.run()


def test_a_trace_of_the_steps_is_written(tiny_model_dir: Path, tmp_path: Path, make_driver: MakeDriver) -> None:
    driver = make_driver(tiny_model_dir, profiler_dir=str(tmp_path / "profiles"))
    driver.core.operations.start_profile()
    run_some(driver)
    (path,) = driver.core.operations.stop_profile()
    assert Path(path).parent == tmp_path / "profiles"
    assert any(event.get("cat") == "cpu_op" and event["ph"] == "X" for event in events_of(path))


def test_each_profile_has_a_file_of_its_own(tiny_model_dir: Path, tmp_path: Path, make_driver: MakeDriver) -> None:
    driver = make_driver(tiny_model_dir, profiler_dir=str(tmp_path))
    paths = []
    for name in "ab":
        driver.core.operations.start_profile()
        run_some(driver, name)
        paths += driver.core.operations.stop_profile()
    assert len({*paths}) == len(list(tmp_path.iterdir())) == 2


def test_a_profile_ends_by_itself_after_its_steps(
    tiny_model_dir: Path, tmp_path: Path, make_driver: MakeDriver
) -> None:
    driver = make_driver(tiny_model_dir, profiler_dir=str(tmp_path), profiler_max_steps=2)
    driver.core.operations.start_profile()
    run_some(driver)
    (written,) = tmp_path.iterdir()
    assert driver.core.operations.stop_profile() == [str(written)]


def test_a_profile_without_a_directory_is_refused_by_the_settings_name(
    tiny_model_dir: Path, make_driver: MakeDriver
) -> None:
    with pytest.raises(UnsupportedError, match="profiler_dir") as caught:
        make_driver(tiny_model_dir).core.operations.start_profile()
    assert caught.value.param == "profiler_dir"


def test_starting_twice_and_stopping_what_was_not_started_are_errors(
    tiny_model_dir: Path, tmp_path: Path, make_driver: MakeDriver
) -> None:
    operations = make_driver(tiny_model_dir, profiler_dir=str(tmp_path)).core.operations
    with pytest.raises(EngineError, match="call start_profile first"):
        operations.stop_profile()
    operations.start_profile()
    with pytest.raises(EngineError, match="call stop_profile first"):
        operations.start_profile()
    operations.stop_profile()
