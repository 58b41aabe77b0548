"""Whatever becomes of requests, each ends exactly once and leaves nothing in the engine."""

import asyncio
import random
import sys
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from tests.engine.faults.conftest import PROMPTS, Ends, assert_nothing_left, engine_args, greedy

from headrace.engine import AsyncLLMEngine, RequestOutputKind
from headrace.engine.client.host import ThreadHost
from headrace.engine.config import EngineConfig
from headrace.engine.core.engine_core import EngineCore
from headrace.engine.core.step_plan import StepPlan, StepResult
from headrace.engine.executor.local import LocalExecutor
from headrace.errors import ContextLengthError, EngineError, EngineGenerateError, OverloadedError, UnsupportedError
from headrace.testing.cancellation import run_cancelled_at

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]


async def generate(engine: AsyncLLMEngine, prompt: str) -> None:
    async for _ in engine.generate(prompt, greedy(max_tokens=40), "r"):
        await asyncio.sleep(0)


async def queue_and_abort(engine: AsyncLLMEngine, prompt: str) -> None:
    stream = await engine.add_request("r", prompt, greedy(max_tokens=200))
    try:
        await anext(stream)
        await engine.abort("r")
    finally:
        await stream.aclose()


async def operate(engine: AsyncLLMEngine, prompt: str) -> None:
    """Calls, with a request beside them."""
    stream = await engine.add_request("r", prompt, greedy(max_tokens=200))
    try:
        await engine.reset_prefix_cache()
        await engine.collective_rpc("check_unknown_is_refused")
    except UnsupportedError:
        await engine.is_sleeping()
    finally:
        await stream.aclose()


async def sleep_and_wake(engine: AsyncLLMEngine, prompt: str) -> None:
    try:
        await engine.sleep(1)
    finally:
        await engine.wake_up()


@pytest.mark.parametrize("use", [generate, queue_and_abort, operate, sleep_and_wake])
async def test_a_cancellation_at_any_await_leaves_nothing(
    use: Callable[[AsyncLLMEngine, str], Coroutine[Any, Any, None]], engine: AsyncLLMEngine
) -> None:
    was_cancelled, index = True, 0
    while was_cancelled:
        was_cancelled = await run_cancelled_at(use(engine, f"{index} is in no cache"), index)
        await engine.wake_up()
        await assert_nothing_left(engine)
        index += 1
        assert index < 100
    assert index >= 2
    assert (await Ends().consume(engine.generate(PROMPTS[0], greedy(), "after"), "after")) is not None


async def test_two_hundred_requests_aborted_at_random_moments_end_exactly_once(engine: AsyncLLMEngine) -> None:
    dice = random.Random(11)
    ends = Ends()

    async def one(number: int) -> None:
        request_id = f"r{number}"
        params = greedy(max_tokens=dice.choice([4, 100]), output_kind=dice.choice(list(RequestOutputKind)))
        outputs = engine.generate(dice.choice(PROMPTS), params, request_id)
        consuming = asyncio.ensure_future(ends.consume(outputs, request_id))
        await asyncio.wait([consuming], timeout=dice.random() * 0.5)
        await engine.abort(request_id)
        await consuming

    await asyncio.gather(*(one(number) for number in range(200)))
    assert len(ends.reasons) == 200
    assert set(ends.counts) <= {"abort", "length"}
    assert ends.counts["abort"] > 50
    await assert_nothing_left(engine)


async def test_a_consumer_that_never_reads_holds_up_nobody_and_is_cleaned_up(engine: AsyncLLMEngine) -> None:
    ends = Ends()
    sleepers = [await engine.add_request(f"s{n}", PROMPTS[n], greedy(max_tokens=150)) for n in range(3)]
    await asyncio.gather(*(ends.consume(engine.generate(p, greedy(), p), p) for p in PROMPTS[:10]))
    assert ends.counts == {"length": 10}
    for sleeper in sleepers:
        await sleeper.aclose()
    await assert_nothing_left(engine)


async def test_a_prompt_longer_than_the_context_is_refused_at_once_and_others_go_on(engine: AsyncLLMEngine) -> None:
    ends = Ends()
    going_on = asyncio.ensure_future(ends.consume(engine.generate(PROMPTS[1], greedy(), "fits"), "fits"))
    with pytest.raises(ContextLengthError, match="256"):
        await engine.add_request("long", None, greedy(), prompt_token_ids=[5] * 256)
    await going_on
    assert ends.reasons == {"fits": "length"}
    await assert_nothing_left(engine)


async def test_requests_that_preempt_each_other_answer_as_each_does_alone(engine: AsyncLLMEngine) -> None:
    ends = Ends()
    params = greedy(max_tokens=60)
    alone = [await ends.consume(engine.generate(p, params, f"alone {p}"), f"alone {p}") for p in PROMPTS[:12]]
    before = engine.statistics().num_preemptions
    together = await asyncio.gather(*(ends.consume(engine.generate(p, params, p), p) for p in PROMPTS[:12]))
    assert engine.statistics().num_preemptions > before
    for one, other in zip(alone, together, strict=True):
        assert one is not None
        assert other is not None
        assert one.outputs[0].token_ids == other.outputs[0].token_ids
    await assert_nothing_left(engine)


class HeldExecutor(LocalExecutor):
    """Once it is told to, holds the first step with three requests until it is let go."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.is_told = False
        self.held = threading.Event()
        self.let_go = threading.Event()

    def execute(self, plan: StepPlan) -> StepResult:
        if self.is_told and len(plan.scheduled) == 3:
            self.held.set()
            self.let_go.wait()
        return super().execute(plan)


async def test_sleeping_in_the_middle_changes_no_answer(tiny_model_dir: Path) -> None:
    ends, executors = Ends(), []

    def build(config: EngineConfig) -> EngineCore:
        executors.append(HeldExecutor(config))
        return EngineCore(config, executors[0])

    config = engine_args(tiny_model_dir).create_engine_config()
    async with AsyncLLMEngine(config, host=ThreadHost(build_core=build)) as engine:
        params = greedy(max_tokens=40)
        expected = [await ends.consume(engine.generate(p, params, f"a{p}"), f"a{p}") for p in PROMPTS[:6]]
        (executor,) = executors
        executor.is_told = True
        try:
            consuming = [asyncio.ensure_future(ends.consume(engine.generate(p, params, p), p)) for p in PROMPTS[:3]]
            assert await asyncio.to_thread(executor.held.wait, 30)
            sleeping = asyncio.ensure_future(engine.sleep(1))
            await asyncio.sleep(0)  # the core has the order to sleep before it ends the step
        finally:
            executor.let_go.set()
        await sleeping
        consuming += [asyncio.ensure_future(ends.consume(engine.generate(p, params, p), p)) for p in PROMPTS[3:6]]
        assert await engine.is_sleeping()
        await engine.check_health()
        assert not any(task.done() for task in consuming)
        await engine.wake_up(["weights"])
        await engine.wake_up(["kv_cache"])
        woken = await asyncio.gather(*consuming)
        expected_ids = [one and one.outputs[0].token_ids for one in expected]
        assert [one and one.outputs[0].token_ids for one in woken] == expected_ids
        await assert_nothing_left(engine)


class SmallExecutor(LocalExecutor):
    """Finds room for six blocks only."""

    def start(self) -> int:
        return min(6, super().start())


async def test_a_request_that_the_whole_cache_cannot_hold_fails_and_others_go_on(tiny_model_dir: Path) -> None:
    def build(config: EngineConfig) -> EngineCore:
        return EngineCore(config, SmallExecutor(config))

    ends = Ends()
    config = engine_args(tiny_model_dir).create_engine_config()
    async with AsyncLLMEngine(config, host=ThreadHost(build_core=build)) as engine:
        small = asyncio.ensure_future(ends.consume(engine.generate(PROMPTS[0], greedy(), "small"), "small"))
        large = await engine.add_request("large", None, greedy(), prompt_token_ids=[5] * 97)
        with pytest.raises(EngineGenerateError, match="97 tokens and the whole KV cache holds 96"):
            await anext(large)
        await small
        assert ends.reasons == {"small": "length"}
        await assert_nothing_left(engine)


@pytest.mark.slow
async def test_a_thousand_queued_requests_are_all_answered(engine: AsyncLLMEngine) -> None:
    ends = Ends()
    numbered = [f"{number} {PROMPTS[number % 40]}" for number in range(1000)]
    await asyncio.gather(*(ends.consume(engine.generate(p, greedy(max_tokens=2), p), p) for p in numbered))
    assert ends.counts == {"length": 1000}
    await assert_nothing_left(engine)


async def test_of_a_flood_the_core_takes_what_may_queue_and_refuses_the_rest(tiny_model_dir: Path) -> None:
    ends = Ends()
    args = engine_args(tiny_model_dir, max_num_seqs=8, max_num_queued_reqs=20)
    async with AsyncLLMEngine.from_engine_args(args) as engine:
        consuming = [
            ends.consume(engine.generate(p, greedy(max_tokens=2), f"{i}"), f"{i}") for i, p in enumerate(PROMPTS * 10)
        ]
        await asyncio.gather(*consuming)
        assert set(ends.counts) == {"length", OverloadedError.__name__}
        assert ends.counts["length"] >= 28
        assert sum(ends.counts.values()) == 400
        await assert_nothing_left(engine)


async def test_what_a_remote_call_raises_is_its_callers_and_the_engine_goes_on(engine: AsyncLLMEngine) -> None:
    def fail(worker: object) -> None:
        raise LookupError(f"nothing in {type(worker).__name__}")

    with pytest.raises(EngineError, match="LookupError: nothing in Worker"):
        await engine.collective_rpc(fail)
    with pytest.raises(UnsupportedError, match="no_such_method"):
        await engine.collective_rpc("no_such_method")
    with pytest.raises(EngineError, match=r"called sys.exit\(3\); return instead"):
        await engine.collective_rpc(lambda _worker: sys.exit(3))
    assert await engine.collective_rpc(lambda worker, x: (type(worker).__name__, x), args=({1, 2},)) == [
        ("Worker", {1, 2})
    ]
    await generate(engine, PROMPTS[0])
    await assert_nothing_left(engine)
