"""AsyncLLMEngine over several workers and over several cores: the same answers, one health, nothing left behind."""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.engine.devices.processes import all_end

from headrace.engine import AsyncEngineArgs, AsyncLLMEngine, SamplingParams
from headrace.errors import EngineDeadError

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(180),  # each test starts several processes that import torch
    pytest.mark.skipif(sys.platform != "linux", reason="waits for processes by pidfd"),
]

PROMPTS = [f"The water of mill {number} turns the wheel {'and the stone ' * (number % 5)}" for number in range(16)]
KV_BYTES = 4_000_000
BLOCK_BYTES = 2 * 2 * 2 * 16 * 4 * 16
"""Keys and values of two layers, two heads of 16 numbers in float32, 16 tokens."""
GREEDY = SamplingParams(temperature=0, max_tokens=24)
SEEDED = SamplingParams(temperature=1.0, seed=7, max_tokens=24)


def engine_of(directory: Path, **args: Any) -> AsyncLLMEngine:
    given = {"kv_cache_memory_bytes": KV_BYTES, "cpu_threads": 1, "device": "cpu", "disable_log_requests": True}
    return AsyncLLMEngine.from_engine_args(AsyncEngineArgs(model=str(directory), **{**given, **args}))


async def answer(engine: AsyncLLMEngine, prompt: str, params: SamplingParams) -> Sequence[int]:
    outputs = [output async for output in engine.generate(prompt, params, f"{id(params)} {prompt}")]
    return outputs[-1].outputs[0].token_ids


async def answers(engine: AsyncLLMEngine) -> list[Sequence[int]]:
    return await asyncio.gather(*(answer(engine, prompt, params) for prompt in PROMPTS for params in (GREEDY, SEEDED)))


async def pids_of(engine: AsyncLLMEngine) -> list[object]:
    return await engine.collective_rpc(lambda _: os.getpid())


def is_there(pid: object) -> bool:
    assert isinstance(pid, int)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def assert_nothing_left(engine: AsyncLLMEngine) -> None:
    await engine.check_integrity()
    statistics = engine.statistics()
    assert (statistics.num_unfinished, statistics.num_running, statistics.num_waiting) == (0, 0, 0)
    assert statistics.num_free_blocks == statistics.num_blocks > 0


@pytest.fixture(scope="module")
def expected(tiny_model_dir: Path) -> list[Sequence[int]]:
    """Of one worker and one core."""

    async def main() -> list[Sequence[int]]:
        async with engine_of(tiny_model_dir) as engine:
            return await answers(engine)

    return asyncio.run(main())


@pytest.mark.parametrize("sizes", [{"tensor_parallel_size": 2}, {"data_parallel_size": 2}])
async def test_answers_are_those_of_one_worker(
    sizes: dict[str, int], tiny_model_dir: Path, expected: list[Sequence[int]]
) -> None:
    async with engine_of(tiny_model_dir, **sizes) as engine:
        pids = await pids_of(engine)
        assert len(set(pids)) == 2
        assert await answers(engine) == expected
        await assert_nothing_left(engine)
        with all_end([*pids, engine.core_pid]):
            await engine.shutdown_background_loop()


async def test_a_killed_worker_kills_the_engine_with_its_name_as_the_cause(tiny_model_dir: Path) -> None:
    async with engine_of(tiny_model_dir, tensor_parallel_size=2) as engine:
        pids = await pids_of(engine)
        stream = await engine.add_request("r", PROMPTS[0], SamplingParams(max_tokens=400, ignore_eos=True))
        await anext(stream)
        with all_end([*pids, engine.core_pid]):
            assert isinstance(pids[1], int)
            os.kill(pids[1], signal.SIGKILL)
            with pytest.raises(EngineDeadError, match=r"worker 1 of 2 \(pid \d+\) was killed by SIGKILL"):
                async for _ in stream:
                    pass
            assert engine.errored


async def test_a_worker_that_dies_while_the_engine_is_idle_is_noticed(tiny_model_dir: Path) -> None:
    async with engine_of(tiny_model_dir, executor_backend="process") as engine:
        (pid,) = await pids_of(engine)
        assert isinstance(pid, int)
        os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(20.0):
            while not engine.errored:
                await asyncio.sleep(0.05)
        with pytest.raises(EngineDeadError, match=r"worker 0 of 1 \(pid \d+\) was killed by SIGKILL"):
            await engine.check_health()


async def test_a_killed_core_takes_its_workers_with_it(tiny_model_dir: Path) -> None:
    async with engine_of(tiny_model_dir, tensor_parallel_size=2) as engine:
        assert engine.core_pid is not None
        with all_end([*await pids_of(engine), engine.core_pid]):
            os.kill(engine.core_pid, signal.SIGKILL)
            with pytest.raises(EngineDeadError, match="killed by SIGKILL"):
                await answer(engine, PROMPTS[0], GREEDY)


async def test_two_cores_share_the_requests_and_answer_together(tiny_model_dir: Path) -> None:
    async with engine_of(tiny_model_dir, data_parallel_size=2) as engine:
        streams = [
            await engine.add_request(str(number), "The water", SamplingParams(max_tokens=400, ignore_eos=True))
            for number in range(4)
        ]
        for stream in streams:
            await anext(stream)
        assert engine.statistics().num_blocks == 2 * (KV_BYTES // BLOCK_BYTES)
        assert not await engine.reset_prefix_cache()  # blocks are held
        await engine.abort([str(number) for number in range(4)])
        assert await engine.reset_prefix_cache()
        await assert_nothing_left(engine)


async def test_one_dead_core_of_two_is_a_dead_engine(tiny_model_dir: Path) -> None:
    async with engine_of(tiny_model_dir, data_parallel_size=2) as engine:
        pids = await pids_of(engine)
        streams = [
            await engine.add_request(str(number), "The water", SamplingParams(max_tokens=400, ignore_eos=True))
            for number in range(4)
        ]
        assert isinstance(pids[1], int)
        os.kill(pids[1], signal.SIGKILL)
        for stream in streams:
            with pytest.raises(EngineDeadError, match="killed by SIGKILL"):
                async for _ in stream:
                    pass
        with pytest.raises(EngineDeadError, match="killed by SIGKILL"):
            await engine.check_health()
        async with asyncio.timeout(20.0):  # without a shutdown
            while any(map(is_there, pids)):
                await asyncio.sleep(0.05)
