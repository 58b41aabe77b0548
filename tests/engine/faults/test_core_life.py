"""A core that is killed, hangs or is slow: every request learns of it once, and nothing of the core is left."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import msgspec
import pytest
from tests.engine.faults.conftest import PROMPTS, Ends, Surroundings, engine_args, greedy

from headrace.engine import AsyncLLMEngine, FrontEndSettings, SamplingParams
from headrace.engine.client.core_client import CoreClient
from headrace.engine.client.host import ThreadHost
from headrace.errors import EngineDeadError, EngineStalledError
from headrace.testing.core_driver import add_request
from headrace.testing.fake_core import FakeCore, fake_engine_config

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sys.platform != "linux", reason="signals and /proc"),
]


async def start_many(engine: AsyncLLMEngine, ends: Ends) -> list[asyncio.Task[object]]:
    """Fifty requests, some of them running, the rest queued."""
    params = greedy(max_tokens=200)
    consuming = [
        asyncio.ensure_future(ends.consume(engine.generate(PROMPTS[n % 40], params, str(n)), str(n))) for n in range(50)
    ]
    while engine.statistics().num_running == 0:
        await asyncio.sleep(0.001)
    return consuming


def child_pids() -> set[int]:
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return {int(pid) for pid in children.split()}


def assert_died_or_had_ended(ends: Ends) -> None:
    """Those that were open learnt of the death; a few may have been answered before."""
    assert sum(ends.counts.values()) == 50
    assert set(ends.counts) <= {"EngineDeadError", "length"}
    assert ends.counts["EngineDeadError"] > 25


async def test_a_core_killed_in_a_step_ends_every_request_once_and_leaves_nothing(tiny_model_dir: Path) -> None:
    before, children = Surroundings.now(), child_pids()
    ends = Ends()
    engine = AsyncLLMEngine.from_engine_args(engine_args(tiny_model_dir))
    async with engine:
        consuming = await start_many(engine, ends)
        pid = engine.core_pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await asyncio.gather(*consuming)
        assert_died_or_had_ended(ends)
        assert await engine.get_num_unfinished_requests() == 0
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            await engine.check_health()
        with pytest.raises(EngineDeadError):
            await engine.sleep(1)
    assert Surroundings.now() == before
    assert child_pids() == children


@pytest.mark.slow
async def test_a_core_that_stands_still_is_first_reported_and_then_killed(tiny_model_dir: Path) -> None:
    before, children = Surroundings.now(), child_pids()
    ends = Ends()
    settings = FrontEndSettings(step_timeout_s=2.0, hang_timeout_s=3.0)
    engine = AsyncLLMEngine.from_engine_args(engine_args(tiny_model_dir), settings=settings)
    async with engine:
        consuming = await start_many(engine, ends)
        assert engine.core_pid is not None
        os.kill(engine.core_pid, signal.SIGSTOP)
        reports = []
        while not engine.errored:
            try:
                await engine.check_health()
            except EngineStalledError as error:
                reports.append(error.message)
                assert not any(task.done() for task in consuming)
            await asyncio.sleep(0.05)
        assert reports
        assert "no step" in reports[0]
        await asyncio.gather(*consuming)
        assert_died_or_had_ended(ends)
    assert Surroundings.now() == before
    assert child_pids() == children


async def test_shutdown_under_load_ends_every_request_once_and_leaves_nothing(tiny_model_dir: Path) -> None:
    before, children = Surroundings.now(), child_pids()
    ends = Ends()
    engine = AsyncLLMEngine.from_engine_args(
        engine_args(tiny_model_dir, kv_events=True, kv_events_endpoint="tcp://*:0")
    )
    async with engine:
        consuming = await start_many(engine, ends)
    await asyncio.gather(*consuming)
    assert sum(ends.counts.values()) == 50
    assert set(ends.counts) <= {"abort", "length"}
    assert Surroundings.now() == before
    assert child_pids() == children


async def test_a_core_in_this_process_leaves_no_thread(tiny_model_dir: Path) -> None:
    ends = Ends()
    settings = FrontEndSettings(in_process=True)
    args = engine_args(tiny_model_dir, kv_events=True, kv_events_endpoint="tcp://*:0")
    async with AsyncLLMEngine.from_engine_args(args, settings=settings) as engine:  # torch starts threads of its own
        await ends.consume(engine.generate(PROMPTS[0], greedy(), "warm"), "warm")
    before = Surroundings.now()
    async with AsyncLLMEngine.from_engine_args(args, settings=settings) as engine:
        consuming = await start_many(engine, ends)
    await asyncio.gather(*consuming)
    assert Surroundings.now() == before


async def test_a_slow_step_is_bad_health_that_passes() -> None:
    core = FakeCore()
    deaths: list[EngineDeadError] = []
    client = CoreClient(
        host=ThreadHost(build_core=lambda _config: core),
        hang_timeout_s=30.0,
        step_timeout_s=0.2,
        on_step=lambda _deltas: None,
        on_death=deaths.append,
    )
    try:
        await client.start(msgspec.json.encode(fake_engine_config()))
        await client.wait_ready(timeout_s=10.0)
        core.hang()
        await client.add(add_request("r", [5, 6], params=SamplingParams(), max_tokens=1_000_000))
        report = await stalled(client)
        assert "while work waits" in report.message
        core.release()
        num_steps = client.statistics.num_steps
        while client.statistics.num_steps == num_steps:
            await asyncio.sleep(0.01)
        client.check_progress()
        await client.abort(["r"])
        assert not deaths
    finally:
        core.release()
        await client.aclose(timeout_s=5.0)


async def stalled(client: CoreClient) -> EngineStalledError:
    while True:
        try:
            client.check_progress()
        except EngineStalledError as error:
            return error
        await asyncio.sleep(0.01)
