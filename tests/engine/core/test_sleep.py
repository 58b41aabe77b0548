"""An engine that sleeps gives its memory back; once awake it answers as if it had never slept."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.engine.core.sleep import SleepState
from headrace.errors import EngineError, InvalidRequestError, SettingsError
from headrace.testing.core_driver import CoreDriver, add_request
from headrace.testing.tiny_model import write_tiny_model

MakeDriver = Callable[..., CoreDriver]

PROMPTS = {str(number): [(number * 7 + step * 3) % 150 + 3 for step in range(5 + 6 * number)] for number in range(4)}


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    """One that a test may change."""
    return write_tiny_model(tmp_path / "model")


def start_all(driver: CoreDriver) -> None:
    for request_id, prompt in PROMPTS.items():
        driver.add(add_request(request_id, prompt, max_tokens=12))


def answers(directory: Path, make_driver: MakeDriver) -> dict[str, list[int]]:
    driver = make_driver(directory)
    start_all(driver)
    return driver.run()


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("num_steps", [0, 1, 5])
def test_requests_that_run_at_sleep_time_end_as_if_nothing_had_been(
    level: int, num_steps: int, tiny_model_dir: Path, make_driver: MakeDriver
) -> None:
    driver = make_driver(tiny_model_dir, max_num_batched_tokens=24, max_num_seqs=3)
    start_all(driver)
    for _ in range(num_steps):
        driver.step()
    operations = driver.core.operations
    operations.sleep(level)
    assert operations.is_sleeping()
    assert driver.core.statistics().num_running == 0
    assert driver.step() == ()
    operations.wake_up(None)
    assert not operations.is_sleeping()
    assert driver.run() == answers(tiny_model_dir, make_driver)


def test_requests_that_arrive_meanwhile_wait(tiny_model_dir: Path, make_driver: MakeDriver) -> None:
    driver = make_driver(tiny_model_dir)
    driver.core.operations.sleep(1)
    start_all(driver)
    assert not driver.core.has_work()
    statistics = driver.core.statistics()
    assert (statistics.num_waiting, statistics.num_waiting_deferred, statistics.sleep_level) == (4, 4, 1)
    driver.core.operations.wake_up(None)
    assert driver.run() == answers(tiny_model_dir, make_driver)


def test_a_request_can_be_aborted_and_refused_while_the_engine_sleeps(
    tiny_model_dir: Path, make_driver: MakeDriver
) -> None:
    driver = make_driver(tiny_model_dir)
    driver.add(add_request("a", PROMPTS["1"]))
    driver.step()
    driver.core.operations.sleep(1)
    driver.abort("a")
    driver.add(add_request("empty", []))
    assert driver.core.has_work()
    driver.step()
    assert {name: end.finish_reason for name, end in driver.ends.items()} == {"a": "abort", "empty": "error"}


def test_steps_run_again_only_when_everything_is_back(tiny_model_dir: Path, make_driver: MakeDriver) -> None:
    driver = make_driver(tiny_model_dir)
    start_all(driver)
    operations = driver.core.operations
    operations.sleep(2)
    operations.wake_up(["weights"])
    assert operations.is_sleeping()
    assert not driver.core.has_work()
    operations.wake_up(["weights"])
    operations.wake_up(["kv_cache"])
    assert not operations.is_sleeping()
    assert driver.run() == answers(tiny_model_dir, make_driver)


def test_prefixes_are_forgotten(tiny_model_dir: Path, make_driver: MakeDriver) -> None:
    driver = make_driver(tiny_model_dir, block_size=4)
    driver.add(add_request("before", PROMPTS["3"]))
    driver.run()
    driver.core.operations.sleep(1)
    driver.core.operations.wake_up(None)
    driver.add(add_request("after", PROMPTS["3"]))
    driver.run()
    assert driver.ends["after"].num_cached_tokens == 0
    assert driver.tokens["after"] == driver.tokens["before"]


def test_after_level_1_changed_weights_are_refused_and_after_level_2_taken(
    model_dir: Path, tmp_path: Path, make_driver: MakeDriver
) -> None:
    driver = make_driver(model_dir)
    operations = driver.core.operations
    operations.sleep(1)
    other = write_tiny_model(tmp_path / "other", seed=1)
    shutil.copy(other / "model.safetensors", model_dir / "model.safetensors")
    with pytest.raises(EngineError, match="have changed"):
        operations.wake_up(None)
    assert operations.is_sleeping()
    operations.sleep(2)
    operations.wake_up(None)
    start_all(driver)
    assert driver.run() == answers(other, make_driver)


def test_weights_that_are_gone_leave_the_engine_asleep(model_dir: Path, make_driver: MakeDriver) -> None:
    driver = make_driver(model_dir)
    driver.core.operations.sleep(2)
    weights = (model_dir / "model.safetensors").rename(model_dir / "elsewhere")
    with pytest.raises(SettingsError, match="safetensors"):
        driver.core.operations.wake_up(None)
    assert driver.core.operations.is_sleeping()
    weights.rename(model_dir / "model.safetensors")
    driver.core.operations.wake_up(None)
    start_all(driver)
    assert driver.run() == answers(model_dir, make_driver)


@pytest.mark.parametrize("level", [0, 3, -1])
def test_only_levels_1_and_2_exist(level: int, tiny_model_dir: Path, make_driver: MakeDriver) -> None:
    with pytest.raises(InvalidRequestError, match="1 or 2") as caught:
        make_driver(tiny_model_dir).core.operations.sleep(level)
    assert caught.value.param == "level"


def test_an_unknown_tag_is_refused(tiny_model_dir: Path, make_driver: MakeDriver) -> None:
    with pytest.raises(InvalidRequestError, match="'dreams'"):
        make_driver(tiny_model_dir).core.operations.wake_up(["weights", "dreams"])


def test_waking_up_while_awake_does_nothing(tiny_model_dir: Path, make_driver: MakeDriver) -> None:
    driver = make_driver(tiny_model_dir)
    start_all(driver)
    driver.step()
    driver.core.operations.wake_up(None)
    assert driver.core.statistics().num_running == 4


def test_sleeping_deeper_is_remembered() -> None:
    state = SleepState()
    state.fall_asleep(2)
    state.bring_back(["weights"])
    state.fall_asleep(1)
    assert (state.level, state.to_bring_back(None)) == (2, ("weights", "kv_cache"))


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the resident memory from /proc")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_memory_really_returns_to_the_system(dtype: str, tmp_path: Path, make_driver: MakeDriver) -> None:
    driver = make_driver(
        write_wide_model(tmp_path / "wide"), dtype=dtype, load_format="dummy", kv_cache_memory_bytes=32 * 2**20
    )
    driver.add(add_request("a", list(range(100)), max_tokens=4))
    driver.run()
    awake = resident_bytes()
    driver.core.operations.sleep(1)
    asleep = resident_bytes()
    weight_bytes = NUM_WIDE_WEIGHTS * (4 if dtype == "float32" else 2)
    assert awake - asleep > 0.9 * weight_bytes
    driver.core.operations.wake_up(None)
    driver.add(add_request("b", list(range(100)), max_tokens=4))
    assert driver.run()["b"] == driver.tokens["a"]


HIDDEN, LAYERS, VOCABULARY = 512, 6, 512
NUM_WIDE_WEIGHTS = LAYERS * HIDDEN * HIDDEN * 3 * 4


def write_wide_model(directory: Path) -> Path:
    """A config alone, of 19 million weights and hardly any KV cache."""
    write_tiny_model(directory)
    config = json.loads((directory / "config.json").read_text())
    config |= {"hidden_size": HIDDEN, "intermediate_size": HIDDEN * 4, "num_hidden_layers": LAYERS}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
