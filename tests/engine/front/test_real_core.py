"""AsyncLLMEngine with a real model in a real process: exact under concurrency, clean under cancellation."""

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from headrace.engine import AsyncEngineArgs, AsyncLLMEngine, RequestOutput, RequestOutputKind, SamplingParams
from headrace.errors import EngineDeadError
from headrace.testing.cancellation import run_cancelled_at

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

PROMPTS = [f"The water of mill {number} turns the wheel {'and the stone ' * (number % 5)}" for number in range(32)]


def args(tiny_model_dir: Path) -> AsyncEngineArgs:
    return AsyncEngineArgs(
        model=str(tiny_model_dir), kv_cache_memory_bytes=4_000_000, cpu_threads=1, disable_log_requests=True
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tiny_model_dir: Path) -> AsyncIterator[AsyncLLMEngine]:
    async with AsyncLLMEngine.from_engine_args(args(tiny_model_dir)) as engine:
        yield engine


def greedy(**params: object) -> SamplingParams:
    return SamplingParams(**{"temperature": 0, "max_tokens": 24, **params})


async def collect(
    engine: AsyncLLMEngine, prompt: object, request_id: str, params: SamplingParams
) -> list[RequestOutput]:
    return [output async for output in engine.generate(prompt, params, request_id)]


async def assert_nothing_left(engine: AsyncLLMEngine) -> None:
    await engine.check_integrity()
    statistics = engine.statistics()
    assert (statistics.num_unfinished, statistics.num_running, statistics.num_waiting) == (0, 0, 0)
    assert statistics.num_free_blocks == statistics.num_blocks > 0


async def test_a_stream_of_deltas_joins_to_the_whole_answer(engine: AsyncLLMEngine) -> None:
    deltas = await collect(engine, PROMPTS[0], "delta", greedy(output_kind=RequestOutputKind.DELTA))
    (final,) = await collect(engine, PROMPTS[0], "final", greedy(output_kind=RequestOutputKind.FINAL_ONLY))
    whole = (await collect(engine, PROMPTS[0], "cumulative", greedy()))[-1]
    assert "".join(output.outputs[0].text for output in deltas) == final.outputs[0].text == whole.outputs[0].text
    tokenizer = await engine.get_tokenizer()
    assert tokenizer.decode(final.outputs[0].token_ids, skip_special_tokens=True) == final.outputs[0].text


async def test_a_request_that_sleep_put_back_waits_and_ends_as_it_would_have(engine: AsyncLLMEngine) -> None:
    (expected,) = await collect(engine, PROMPTS[1], "awake", greedy(output_kind=RequestOutputKind.FINAL_ONLY))
    stream = await engine.add_request("r", PROMPTS[1], greedy())
    await anext(stream)
    if engine.request_state("r") is not None:  # a fast core may have ended it
        await engine.sleep(1)
        assert engine.request_state("r") in ("waiting", None)
        await engine.wake_up()
    outputs = [output async for output in stream]
    assert not outputs or outputs[-1].outputs[0].token_ids == expected.outputs[0].token_ids


async def test_thirty_two_at_once_answer_as_each_does_alone(engine: AsyncLLMEngine) -> None:
    alone = [(await collect(engine, prompt, prompt, greedy()))[-1].outputs[0].token_ids for prompt in PROMPTS]
    await engine.reset_prefix_cache()
    together = await asyncio.gather(*(collect(engine, prompt, prompt, greedy()) for prompt in PROMPTS))
    assert [outputs[-1].outputs[0].token_ids for outputs in together] == alone
    assert len({tuple(token_ids) for token_ids in alone}) > 16  # the answers differ, or equality would prove nothing
    await assert_nothing_left(engine)


async def test_a_prompt_asked_again_comes_from_the_prefix_cache(engine: AsyncLLMEngine) -> None:
    first = (await collect(engine, PROMPTS[4] * 3, "first", greedy()))[-1]
    again = (await collect(engine, PROMPTS[4] * 3, "again", greedy()))[-1]
    assert again.num_cached_tokens > 0
    assert again.outputs[0].token_ids == first.outputs[0].token_ids


async def test_a_stop_string_cuts_the_greedy_answer_where_it_occurs(engine: AsyncLLMEngine) -> None:
    text = (await collect(engine, PROMPTS[1], "whole", greedy()))[-1].outputs[0].text
    stop = text[5:8]
    cut = (await collect(engine, PROMPTS[1], "cut", greedy(stop=stop)))[-1].outputs[0]
    assert (cut.text, cut.finish_reason, cut.stop_reason) == (text[: text.index(stop)], "stop", stop)
    await assert_nothing_left(engine)


async def test_abort_returns_when_the_blocks_are_free(engine: AsyncLLMEngine) -> None:
    streams = [
        await engine.add_request(f"r{number}", prompt, greedy(max_tokens=None, ignore_eos=True))
        for number, prompt in enumerate(PROMPTS[:8])
    ]
    await asyncio.gather(*(anext(stream) for stream in streams))
    assert engine.statistics().num_free_blocks < engine.statistics().num_blocks
    await engine.abort(f"r{number}" for number in range(8))
    statistics = engine.statistics()
    assert statistics.num_running == 0
    assert statistics.num_free_blocks == statistics.num_blocks
    for stream in streams:
        assert [output async for output in stream][-1].outputs[0].finish_reason == "abort"


async def test_a_consumer_that_never_reads_holds_up_nobody(engine: AsyncLLMEngine) -> None:
    sleeper = await engine.add_request("sleeper", PROMPTS[0], greedy(max_tokens=60, ignore_eos=True))
    others = await asyncio.gather(*(collect(engine, prompt, prompt, greedy()) for prompt in PROMPTS[:8]))
    assert all(outputs[-1].finished for outputs in others)
    outputs = [output async for output in sleeper]
    assert len(outputs[-1].outputs[0].token_ids) == 60
    await assert_nothing_left(engine)


async def test_two_hundred_requests_cancelled_at_random_moments_leave_nothing(engine: AsyncLLMEngine) -> None:
    dice = random.Random(3)

    async def one(number: int) -> None:
        params = greedy(max_tokens=200, ignore_eos=True, output_kind=dice.choice(list(RequestOutputKind)))
        consuming = asyncio.ensure_future(collect(engine, dice.choice(PROMPTS), f"r{number}", params))
        await asyncio.wait([consuming], timeout=dice.random() * 0.5)
        if dice.random() < 0.5:
            await engine.abort(f"r{number}")
        consuming.cancel()
        await asyncio.wait([consuming])

    await asyncio.gather(*(one(number) for number in range(200)))
    await assert_nothing_left(engine)
    answer = (await collect(engine, PROMPTS[0], "after", greedy()))[-1]
    assert answer.finished


async def test_cancelling_at_any_await_leaves_no_block_held(engine: AsyncLLMEngine) -> None:
    was_cancelled, index = True, 0
    while was_cancelled and index < 100:
        prompt = f"{index} is a number that no cache holds"
        was_cancelled = await run_cancelled_at(collect(engine, prompt, "r", greedy(max_tokens=6)), index)
        await assert_nothing_left(engine)
        index += 1
    assert 2 <= index < 100


async def test_sampling_with_a_seed_repeats_itself_in_any_company(engine: AsyncLLMEngine) -> None:
    params = SamplingParams(temperature=1.0, seed=11, max_tokens=16)
    alone = (await collect(engine, PROMPTS[2], "alone", params))[-1].outputs[0].token_ids
    crowd = [collect(engine, prompt, prompt, SamplingParams(max_tokens=16)) for prompt in PROMPTS[:7]]
    among, *_ = await asyncio.gather(collect(engine, PROMPTS[2], "among", params), *crowd)
    assert among[-1].outputs[0].token_ids == alone


async def test_the_models_generation_config_is_the_default(engine: AsyncLLMEngine) -> None:
    config = await engine.get_model_config()
    defaults = engine.default_sampling_params()
    assert defaults.max_tokens is None
    assert config.sampling_defaults.temperature in {None, defaults.temperature}


async def test_every_block_is_free_before_the_first_report(tiny_model_dir: Path) -> None:
    async with AsyncLLMEngine.from_engine_args(args(tiny_model_dir)) as engine:
        statistics = engine.statistics()
        assert statistics.num_blocks > 0
        assert statistics.num_free_blocks == statistics.num_blocks


async def test_a_core_killed_mid_stream_ends_the_stream_with_an_error(tiny_model_dir: Path) -> None:
    engine = AsyncLLMEngine.from_engine_args(args(tiny_model_dir))
    async with engine:
        stream = await engine.add_request("r", PROMPTS[0], greedy(max_tokens=None, ignore_eos=True))
        await anext(stream)
        pid = engine.core_pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            async for _ in stream:
                pass
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_the_core_in_a_thread_answers_the_same(engine: AsyncLLMEngine, tiny_model_dir: Path) -> None:
    expected = (await collect(engine, PROMPTS[3], "process", greedy()))[-1].outputs[0].token_ids
    async with AsyncLLMEngine.from_engine_args(args(tiny_model_dir), in_process=True) as debugged:
        assert debugged.core_pid is None
        answer = (await collect(debugged, PROMPTS[3], "thread", greedy()))[-1].outputs[0].token_ids
    assert answer == expected
