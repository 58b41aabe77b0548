"""The core's process: how it starts, dies, is found hung, and never outlives whoever started it."""

import asyncio
import contextlib
import dataclasses
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop

from headrace.engine import AsyncLLMEngine, FrontEndSettings, RequestStream, SamplingParams
from headrace.engine.client.host import ProcessHost
from headrace.errors import EngineDeadError
from headrace.testing.cancellation import run_cancelled_at
from headrace.testing.fake_core import fake_engine_config
from headrace.tokenization import ByteTokenizer, TokenizationService

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sys.platform != "linux", reason="waits for processes by pidfd"),
]

FAKE = "headrace.testing.fake_core"


@pytest.fixture
def host() -> ProcessHost:
    return ProcessHost(module=FAKE)


@pytest.fixture
def new_engine(host: ProcessHost, tokenization: TokenizationService) -> AsyncLLMEngine:
    """Not started; its core is a process without a model."""
    return AsyncLLMEngine(fake_engine_config(), host=host, tokenization=tokenization)


def pid_of(host: ProcessHost) -> int:
    assert host.pid is not None
    return host.pid


@contextlib.contextmanager
def ends_soon(pid: int, *, timeout_s: float = 10.0) -> Iterator[None]:
    """The process, anybody's child, has ended within `timeout_s` of the block's end."""
    fd = os.pidfd_open(pid)
    try:
        yield
        readable, _, _ = select.select([fd], [], [], timeout_s)
        assert readable, f"process {pid} still runs"
    finally:
        os.close(fd)


def open_files() -> set[str]:
    return {entry.name for entry in Path("/proc/self/fd").iterdir()}


async def take_one(engine: AsyncLLMEngine, request_id: str) -> RequestStream:
    stream = await engine.add_request(request_id, "abc", SamplingParams(max_tokens=4000))
    await anext(stream)
    return stream


async def drain(stream: RequestStream) -> None:
    async for _ in stream:
        pass


async def test_a_killed_core_ends_every_stream_with_an_error_that_says_so(
    new_engine: AsyncLLMEngine, host: ProcessHost
) -> None:
    async with new_engine as engine:
        streams = [await take_one(engine, str(number)) for number in range(3)]
        with ends_soon(pid_of(host)):
            os.kill(pid_of(host), signal.SIGKILL)
            for stream in streams:
                with pytest.raises(EngineDeadError, match="was killed by SIGKILL"):
                    await drain(stream)
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            await engine.add_request("new", "abc", SamplingParams())
        assert engine.errored
        assert await engine.get_num_unfinished_requests() == 0
    with pytest.raises(ProcessLookupError):  # reaped: no zombie either
        os.kill(pid_of(host), 0)


async def test_a_core_that_stands_still_is_killed(tokenization: TokenizationService, host: ProcessHost) -> None:
    settings = FrontEndSettings(hang_timeout_s=2.0)
    async with AsyncLLMEngine(fake_engine_config(), host=host, settings=settings, tokenization=tokenization) as engine:
        with ends_soon(pid_of(host)):
            os.kill(pid_of(host), signal.SIGSTOP)
            stream = await engine.add_request("r", "abc", SamplingParams(max_tokens=4000))
            with pytest.raises(EngineDeadError, match="hangs"):
                await drain(stream)
            with pytest.raises(EngineDeadError, match="hangs"):
                await engine.check_health()


async def test_signals_to_end_are_left_to_the_front_end(new_engine: AsyncLLMEngine, host: ProcessHost) -> None:
    async with new_engine as engine:
        os.kill(pid_of(host), signal.SIGINT)
        os.kill(pid_of(host), signal.SIGTERM)
        await engine.check_integrity()
        await (await take_one(engine, "r")).aclose()


async def test_shutdown_leaves_no_process_thread_task_or_file(new_engine: AsyncLLMEngine, host: ProcessHost) -> None:
    threads, tasks, files = set(threading.enumerate()), asyncio.all_tasks(), open_files()
    async with new_engine as engine:
        await take_one(engine, "r")
    assert set(threading.enumerate()) == threads
    assert asyncio.all_tasks() == tasks
    assert open_files() == files
    with pytest.raises(ProcessLookupError):
        os.kill(pid_of(host), 0)


async def test_a_shutdown_cancelled_at_any_await_leaves_no_process(tokenization: TokenizationService) -> None:
    was_cancelled, index = True, 0
    while was_cancelled:
        host = ProcessHost(module=FAKE)
        engine = AsyncLLMEngine(fake_engine_config(), host=host, tokenization=tokenization)
        await take_one(engine, "r")
        with ends_soon(pid_of(host)):
            was_cancelled = await run_cancelled_at(engine.shutdown_background_loop(), index)
            assert await engine.get_num_unfinished_requests() == 0
        index += 1
    assert index > 2


async def test_a_core_that_ignores_shutdown_is_killed(tokenization: TokenizationService, host: ProcessHost) -> None:
    settings = FrontEndSettings(shutdown_timeout_s=0.1)
    engine = AsyncLLMEngine(fake_engine_config(), host=host, settings=settings, tokenization=tokenization)
    await engine.start_background_loop()
    with ends_soon(pid_of(host)):
        os.kill(pid_of(host), signal.SIGSTOP)
        await engine.shutdown_background_loop()


async def test_a_core_that_is_not_ready_in_time_is_killed(tokenization: TokenizationService) -> None:
    host = ProcessHost(module=FAKE)
    settings = FrontEndSettings(start_timeout_s=0.01)
    engine = AsyncLLMEngine(fake_engine_config(), host=host, settings=settings, tokenization=tokenization)
    with pytest.raises(EngineDeadError, match=r"not ready within 0\.01 s; raise start_timeout_s"):
        await engine.start_background_loop()
    await engine.shutdown_background_loop()
    with pytest.raises(ProcessLookupError):
        os.kill(pid_of(host), 0)


async def test_a_core_that_ends_before_it_is_ready_says_how(
    tokenization: TokenizationService, capfd: pytest.CaptureFixture[str]
) -> None:
    host = ProcessHost(module="headrace.engine.nowhere")
    engine = AsyncLLMEngine(fake_engine_config(), host=host, tokenization=tokenization)
    with pytest.raises(EngineDeadError, match="exited with status 1; what it wrote to standard error"):
        await engine.start_background_loop()
    await engine.shutdown_background_loop()
    assert "No module named headrace.engine.nowhere" in capfd.readouterr().err


async def test_the_real_core_reports_what_keeps_it_from_loading(tokenization: TokenizationService) -> None:
    config = fake_engine_config()
    config = dataclasses.replace(config, execution=dataclasses.replace(config.execution, load_format="safetensors"))
    async with contextlib.AsyncExitStack() as cleanup:
        engine = AsyncLLMEngine(config, host=ProcessHost(), tokenization=tokenization)
        cleanup.push_async_callback(engine.shutdown_background_loop)
        with pytest.raises(EngineDeadError) as caught:
            await engine.start_background_loop()
    assert caught.value.message.startswith("the engine core failed: ")
    assert caught.value.__cause__ is None  # a wrong setting: where the core noticed it tells nothing


def test_it_runs_on_uvloop_as_well() -> None:
    async def main() -> str:
        async with TokenizationService() as tokenization:
            tokenization.register("fake", ByteTokenizer())
            host = ProcessHost(module=FAKE)
            async with AsyncLLMEngine(fake_engine_config(), host=host, tokenization=tokenization) as engine:
                outputs = engine.generate("abc", SamplingParams(max_tokens=7), "r")
                return [output async for output in outputs][-1].outputs[0].text

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(main()) == "abcabca"


def test_the_front_end_needs_no_torch() -> None:
    code = "import sys, headrace.engine.async_engine; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


PARENT = """
import asyncio, os, sys
from headrace.engine import AsyncLLMEngine, SamplingParams
from headrace.engine.client.host import ProcessHost
from headrace.testing.cancellation import run_cancelled_at
from headrace.testing.fake_core import fake_engine_config
from headrace.tokenization import ByteTokenizer, TokenizationService

async def main():
    tokenization = TokenizationService()
    tokenization.register("fake", ByteTokenizer())
    host = ProcessHost(module=sys.argv[2])
    engine = AsyncLLMEngine(fake_engine_config(), host=host, tokenization=tokenization)
    await engine.start_background_loop()
    await engine.add_request("r", "abc", SamplingParams(max_tokens=4000))
    print(host.pid, flush=True)
    if sys.argv[1] == "fork" and os.fork() == 0:  # a process that inherits our end of the channel
        print(os.getpid(), flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


HANGING_CORE = """
import sys
from headrace.engine.core.process import run_core_process
from headrace.testing.cancellation import run_cancelled_at
from headrace.testing.fake_core import FakeCore

def build(config):
    core = FakeCore(config)
    core.hang()
    return core

sys.exit(run_core_process(int(sys.argv[1]), build_core=build))
"""


@pytest.mark.parametrize(("way", "module"), [("alone", FAKE), ("fork", FAKE), ("alone", "hanging_core")])
def test_the_core_does_not_outlive_a_killed_parent(way: str, module: str, tmp_path: Path) -> None:
    (tmp_path / "hanging_core.py").write_text(HANGING_CORE)
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    with subprocess.Popen(
        [sys.executable, str(script), way, module], stdout=subprocess.PIPE, text=True, env=env
    ) as parent:
        assert parent.stdout is not None
        core_pid = int(parent.stdout.readline())
        sibling_pid = int(parent.stdout.readline()) if way == "fork" else None
        try:
            with ends_soon(core_pid):
                parent.kill()
        finally:
            if sibling_pid is not None:
                os.kill(sibling_pid, signal.SIGKILL)
