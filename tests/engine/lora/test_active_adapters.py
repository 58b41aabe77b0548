"""At most `max_loras` adapters run together, and whoever waits for a place gets it in turn."""

from collections.abc import Callable
from typing import Any

import pytest

from headrace.engine.config import SchedulerConfig
from headrace.engine.core.kv_cache import KVCacheBlocks
from headrace.engine.core.scheduler import Scheduler
from headrace.engine.core.step_plan import StepPlan, StepResult
from headrace.engine.lora_request import LoRARequest
from headrace.engine.wire.messages import WireError
from headrace.testing.core_driver import add_request


def lora(number: int) -> LoRARequest:
    return LoRARequest(f"adapter-{number}", number, f"/adapters/{number}")


def make_scheduler(*, max_loras: int, max_num_seqs: int = 8) -> Scheduler:
    config = SchedulerConfig(max_num_seqs=max_num_seqs, max_num_batched_tokens=64, max_model_len=64)
    return Scheduler(config, cache=KVCacheBlocks(64, block_size=4), max_loras=max_loras)


def step(scheduler: Scheduler) -> StepPlan:
    """One step in which every sampled request draws token 7."""
    plan = scheduler.schedule()
    scheduler.update(plan, StepResult(token_ids={r.request_id: 7 for r in plan.scheduled if r.is_sampled}))
    scheduler.check_integrity()
    return plan


def admitted(plan: StepPlan) -> list[str]:
    return [request.request_id for request in plan.admitted]


def test_a_further_adapter_waits_until_a_place_is_free() -> None:
    scheduler = make_scheduler(max_loras=2)
    for number in (1, 2, 3):
        scheduler.add(add_request(f"r{number}", [number] * 4, lora=lora(number), max_tokens=number + 1))
    assert admitted(step(scheduler)) == ["r1", "r2"]
    assert admitted(step(scheduler)) == []
    assert admitted(step(scheduler)) == ["r3"]


def test_only_requests_without_an_adapter_pass_one_that_is_held_back() -> None:
    scheduler = make_scheduler(max_loras=1)
    scheduler.add(add_request("runs", [1] * 4, lora=lora(1), max_tokens=3))
    scheduler.add(add_request("held back", [2] * 4, lora=lora(2)))
    scheduler.add(add_request("same adapter as what runs", [3] * 4, lora=lora(1)))
    scheduler.add(add_request("no adapter", [4] * 4))
    assert admitted(step(scheduler)) == ["runs", "no adapter"]


def test_a_stream_of_one_adapter_does_not_starve_another() -> None:
    scheduler = make_scheduler(max_loras=1, max_num_seqs=4)
    scheduler.add(add_request("first", [1] * 4, lora=lora(1), max_tokens=4))
    scheduler.add(add_request("other", [2] * 4, lora=lora(2), max_tokens=4))
    seen: list[str] = []
    for number in range(12):
        scheduler.add(add_request(f"more {number}", [number + 3] * 4, lora=lora(1), max_tokens=4))
        seen += admitted(step(scheduler))
    assert seen.index("other") == 1


def test_requests_of_one_adapter_take_one_place() -> None:
    scheduler = make_scheduler(max_loras=1)
    for number in range(3):
        scheduler.add(add_request(str(number), [number] * 4, lora=lora(1)))
    assert admitted(step(scheduler)) == ["0", "1", "2"]


def test_an_adapter_is_refused_where_adapters_are_off() -> None:
    refused = make_scheduler(max_loras=0).add(add_request("a", [1, 2], lora=lora(1)))
    assert refused is not None
    assert refused.finish_reason == "error"
    assert "enable_lora" in str(refused.error)


def test_a_failed_request_ends_with_its_reason_and_leaves_nothing_cached() -> None:
    scheduler = make_scheduler(max_loras=1)
    scheduler.add(add_request("bad", [1] * 9, lora=lora(1)))
    plan = scheduler.schedule()
    deltas = scheduler.update(
        plan,
        StepResult(
            token_ids={"bad": 7}, failures={"bad": WireError(kind="InvalidRequestError", message="no such adapter")}
        ),
    )
    (delta,) = deltas
    assert (delta.finish_reason, delta.new_token_ids) == ("error", ())
    assert (delta.error_kind, delta.error) == ("InvalidRequestError", "no such adapter")
    scheduler.check_integrity()
    assert not scheduler.has_work
    scheduler.add(add_request("again", [1] * 9, lora=lora(1)))
    assert step(scheduler).scheduled[0].start == 0


@pytest.fixture
def driver(adapted: Any, make_driver: Callable[..., Any]) -> Any:
    return make_driver(adapted.base.directory, enable_lora=True, max_loras=1)


def test_a_bad_directory_fails_only_the_request_that_names_it(adapted: Any, driver: Any, tmp_path: Any) -> None:
    prompt = [5, 9, 3, 11]
    driver.add(add_request("bad", prompt, lora=LoRARequest("missing", 9, str(tmp_path / "nowhere"))))
    driver.add(add_request("base", prompt))
    driver.add(add_request("good", prompt, lora=adapted.request("mlp")))
    tokens = driver.run()
    assert driver.ends["bad"].finish_reason == "error"
    assert "no LoRA adapter at" in str(driver.ends["bad"].error)
    assert tokens == {"bad": [], "base": adapted.greedy(None, prompt), "good": adapted.greedy("mlp", prompt)}
