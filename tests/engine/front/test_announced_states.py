"""What a core tells ahead of its steps, so that a request's status is true while its first tokens are computed."""

from collections.abc import Callable
from pathlib import Path

from headrace.engine.model_config import load_model_config
from headrace.engine.wire.messages import TokenDelta
from headrace.testing.core_driver import CoreDriver, add_request


def memory_of(directory: Path) -> int:
    """Room for one context of 64 tokens in blocks of 4, and for one more block."""
    return load_model_config(str(directory)).kv_values_per_token * 4 * 4 * 17


def run(driver: CoreDriver) -> list[TokenDelta]:
    """Everything announced until nothing is left to do."""
    announced: list[TokenDelta] = []
    while driver.core.has_work():
        driver.core.step(announce=announced.extend)
    return announced


def test_a_request_is_announced_before_the_step_that_begins_it(
    tiny_model_dir: Path, make_driver: Callable[..., CoreDriver]
) -> None:
    driver = make_driver(tiny_model_dir, max_num_seqs=1)
    for name in ("first", "second"):
        driver.core.add_request(add_request(name, [5, 6, 7], max_tokens=2))
    assert [(delta.request_id, delta.is_running) for delta in run(driver)] == [("first", True), ("second", True)]


def test_requests_that_sleep_put_back_are_told_once(
    tiny_model_dir: Path, make_driver: Callable[..., CoreDriver]
) -> None:
    driver = make_driver(tiny_model_dir, max_num_seqs=1)
    for name in ("runs", "waits"):
        driver.core.add_request(add_request(name, [5, 6, 7], max_tokens=4))
    driver.core.step()
    driver.core.operations.sleep(1)
    assert [(delta.request_id, delta.is_running) for delta in driver.core.take_moved()] == [("runs", False)]
    assert driver.core.take_moved() == ()
    driver.core.operations.wake_up(None)
    assert [delta.request_id for delta in run(driver)] == ["runs", "waits"]


def test_a_preempted_request_is_announced_as_waiting_and_again_as_running(
    tiny_model_dir: Path, make_driver: Callable[..., CoreDriver]
) -> None:
    driver = make_driver(
        tiny_model_dir, max_model_len=64, block_size=4, kv_cache_memory_bytes=memory_of(tiny_model_dir)
    )
    for number in range(4):
        driver.core.add_request(add_request(str(number), [5 + number] * 20, max_tokens=30))
    announced = run(driver)
    num_back = sum(delta.is_running is False for delta in announced)
    assert num_back == driver.core.statistics().num_preemptions > 0
    assert sum(delta.is_running is True for delta in announced) == 4 + num_back
    last = {delta.request_id: delta.is_running for delta in announced}
    assert set(last.values()) == {True}
