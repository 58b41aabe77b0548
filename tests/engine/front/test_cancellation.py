"""The cancellation matrix: whichever await a caller is cancelled in, nothing of its request is left anywhere."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from headrace.engine import AsyncLLMEngine, RequestOutputKind, SamplingParams
from headrace.engine.client.host import ThreadHost
from headrace.testing.cancellation import run_cancelled_at
from headrace.testing.fake_core import FakeCore, fake_engine_config
from headrace.tokenization import TokenizationService


async def assert_nothing_left(engine: AsyncLLMEngine) -> None:
    await engine.check_integrity()  # the core has handled all that was sent before
    statistics = engine.statistics()
    assert (statistics.num_unfinished, statistics.num_running, statistics.num_waiting) == (0, 0, 0)
    assert statistics.num_free_blocks == statistics.num_blocks


async def generate(engine: AsyncLLMEngine, prompt: str) -> None:
    async for _ in engine.generate(prompt, SamplingParams(max_tokens=12), "r"):
        await asyncio.sleep(0)


async def generate_slowly(engine: AsyncLLMEngine, prompt: str) -> None:
    stream = await engine.add_request("r", prompt, SamplingParams(max_tokens=12, stop="zz"))
    try:
        async for _ in stream:
            await asyncio.sleep(0)
    finally:
        await stream.aclose()


async def generate_and_abort(engine: AsyncLLMEngine, prompt: str) -> None:
    outputs = engine.generate(prompt, SamplingParams(max_tokens=4000), "r")
    async for _ in outputs:
        await engine.abort("r")


@pytest.mark.parametrize("use", [generate, generate_slowly, generate_and_abort])
async def test_cancelling_a_request_at_any_await_leaves_nothing(
    engine: AsyncLLMEngine, use: Callable[[AsyncLLMEngine, str], Coroutine[Any, Any, None]]
) -> None:
    for index in range(100):
        prompt = f"a prompt that is not in the cache, number {index}"
        was_reached = await run_cancelled_at(use(engine, prompt), index)
        await assert_nothing_left(engine)
        if not was_reached:
            break
    assert 2 <= index < 99


async def test_cancelling_the_start_at_any_await_and_shutting_down_leaves_nothing(
    tokenization: TokenizationService,
) -> None:
    async def start_and_stop(engine: AsyncLLMEngine) -> None:
        async with engine:
            await engine.check_health()

    was_reached, index = True, 0
    while was_reached:
        host = ThreadHost(build_core=FakeCore)
        engine = AsyncLLMEngine(fake_engine_config(), host=host, tokenization=tokenization)
        was_reached = await run_cancelled_at(start_and_stop(engine), index)
        await engine.shutdown_background_loop()
        assert "not running" in repr(host)
        index += 1
    assert index > 2


async def test_two_hundred_requests_aborted_at_random_moments(engine: AsyncLLMEngine, core: FakeCore) -> None:
    dice = random.Random(7)
    ways = {"cancel": 0, "abort": 0, "close": 0}

    async def one(number: int) -> None:
        request_id = f"r{number}"
        way = dice.choice(list(ways))
        params = SamplingParams(max_tokens=4000, output_kind=dice.choice(list(RequestOutputKind)))
        outputs = engine.generate(f"prompt {number}", params, request_id)
        consuming = asyncio.ensure_future(consume(outputs))
        if number % 2:  # every other one has reached the core, whatever the machine does meanwhile
            while not any(added.request_id.startswith(f"{request_id}#") for added in list(core.added)):
                await asyncio.sleep(0)
        for _ in range(dice.randrange(60)):
            await asyncio.sleep(0)
        if way == "abort":
            while request_id not in (await live_ids(engine)) and not consuming.done():
                await asyncio.sleep(0)
            await engine.abort(request_id)
            assert await consuming in {"abort", "length"}
        else:
            consuming.cancel()
            await asyncio.wait([consuming])
        ways[way] += 1

    await asyncio.gather(*(one(number) for number in range(200)))
    await assert_nothing_left(engine)
    assert sum(ways.values()) == 200
    await engine.reset_prefix_cache()  # answered after all that was sent before
    assert len(core.aborted) > 50


async def live_ids(engine: AsyncLLMEngine) -> set[str]:
    return set(engine._requests._outputs._by_request_id)


async def consume(outputs: AsyncIterator[Any]) -> str | None:
    reason = None
    async for output in outputs:
        reason = output.outputs[0].finish_reason
    return reason
