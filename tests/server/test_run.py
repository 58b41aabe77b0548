"""The server's life: ready, stopped politely or at once, ended by its engine's death."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from headrace.aio.stop import StopRequest
from headrace.aio.tasks import TaskOwner
from headrace.errors import EngineDeadError, SettingsError
from headrace.openai.sse import DONE_DATA, SseDecoder
from headrace.ready_file import write_ready_file
from headrace.server.listener import bound_listener, url_of
from headrace.server.run import serve_engine
from headrace.server.settings import ServerSettings
from headrace.testing.fake_engine import FakeEngine

pytestmark = pytest.mark.integration

STREAM = {"prompt": "a story", "stream": True}


async def content_of(path: Path) -> Any:
    """What the ready file says, once it is there."""
    async with asyncio.timeout(20):
        while not await asyncio.to_thread(path.exists):
            await asyncio.sleep(0.01)  # a file announces itself to nobody
    return msgspec.json.decode(await asyncio.to_thread(path.read_bytes))


async def events(response: httpx.Response) -> list[bytes]:
    decoder = SseDecoder()
    return [event async for chunk in response.aiter_bytes() for event in decoder.feed(chunk)]


async def refused(url: str) -> None:
    """Returns when new connections are refused."""
    with contextlib.suppress(httpx.TransportError):
        async with asyncio.timeout(10):
            while True:  # each attempt is a connection of its own
                async with httpx.AsyncClient(timeout=5) as other:
                    await other.get(f"{url}/health")
    with pytest.raises(httpx.ConnectError):
        await httpx.AsyncClient().get(f"{url}/health")


@dataclass
class Running:
    url: str
    stop: StopRequest
    ended: "asyncio.Task[None]"
    http: httpx.AsyncClient


@contextlib.asynccontextmanager
async def running(engine: FakeEngine, tmp_path: Path, **settings: Any) -> AsyncIterator[Running]:
    """`serve_engine` in this loop; left only when it has ended."""
    stop = StopRequest()
    ready = tmp_path / "ready.json"
    with bound_listener("127.0.0.1", 0) as listener:
        async with TaskOwner("test") as owner, httpx.AsyncClient(base_url=url_of(listener), timeout=20) as http:
            whole = ServerSettings(ready_file=str(ready), **settings)
            ended = owner.spawn(serve_engine(engine, whole, listener=listener, stop=stop), name="server")
            yield Running((await content_of(ready))["url"], stop, ended, http)
            stop.request()
            await asyncio.wait({ended}, timeout=20)
            assert ended.done()


async def test_the_ready_file_tells_the_url_of_a_free_port(engine: FakeEngine, tmp_path: Path) -> None:
    async with running(engine, tmp_path) as server:
        assert (await server.http.get(f"{server.url}/health")).status_code == 200
        told = await content_of(tmp_path / "ready.json")
        assert told == {"url": server.url, "admin_url": None, "pid": os.getpid()}
    assert [path.name for path in tmp_path.iterdir()] == ["ready.json"]  # noqa: ASYNC240 - nothing runs any more


async def test_a_stop_lets_running_requests_finish_and_takes_no_new_ones(engine: FakeEngine, tmp_path: Path) -> None:
    engine.hold(after_tokens=2)
    async with running(engine, tmp_path) as server:
        async with server.http.stream("POST", "/v1/completions", json=STREAM) as response:
            server.stop.request()
            await refused(server.url)
            assert not server.ended.done()
            engine.release()
            assert (await events(response))[-1] == DONE_DATA
        await server.ended
    assert engine.statistics().num_aborted == 0


async def test_what_does_not_finish_in_time_is_aborted_with_an_error_event(engine: FakeEngine, tmp_path: Path) -> None:
    engine.hold(after_tokens=2)
    async with running(engine, tmp_path, drain_timeout_s=0.1) as server:
        async with server.http.stream("POST", "/v1/completions", json=STREAM) as response:
            server.stop.request()
            last = (await events(response))[-1]
        assert msgspec.json.decode(last)["error"]["code"] == "aborted"
        await server.ended


async def test_a_second_stop_request_does_not_wait(engine: FakeEngine, tmp_path: Path) -> None:
    engine.hold(after_tokens=2)
    async with running(engine, tmp_path, drain_timeout_s=1000) as server:
        async with server.http.stream("POST", "/v1/completions", json=STREAM) as response:
            server.stop.request()
            server.stop.request()
            assert DONE_DATA not in await events(response)
        await server.ended


async def test_idle_connections_do_not_hold_a_stop_up(engine: FakeEngine, tmp_path: Path) -> None:
    async with running(engine, tmp_path, drain_timeout_s=1000) as server:
        await server.http.get("/health")  # the client keeps this connection
        server.stop.request()
        await asyncio.wait_for(server.ended, timeout=10)


async def test_a_dead_engine_ends_the_server_with_its_error(engine: FakeEngine, tmp_path: Path) -> None:
    engine.hold(after_tokens=2)
    async with running(engine, tmp_path, health_interval_s=0.05) as server:
        async with server.http.stream("POST", "/v1/completions", json=STREAM) as response:
            engine.die("killed by the test")
            last = (await events(response))[-1]
        assert msgspec.json.decode(last)["error"]["code"] == "engine_dead"
        with pytest.raises(EngineDeadError, match="killed by the test"):
            await server.ended


def test_a_port_in_use_is_said_before_anything_starts() -> None:
    with bound_listener("127.0.0.1", 0) as first:
        first.listen()
        with pytest.raises(SettingsError, match="cannot listen") as caught, bound_listener(*first.getsockname()):
            pass
    assert caught.value.param == "port"


def test_a_host_that_does_not_exist_is_said() -> None:
    with pytest.raises(SettingsError, match="cannot listen on host") as caught, bound_listener("300.1.1.1", 0):
        pass
    assert caught.value.param == "host"


def test_an_ipv6_url_has_brackets() -> None:
    try:
        with bound_listener("::1", 0) as listener:
            assert url_of(listener) == f"http://[::1]:{listener.getsockname()[1]}"
    except SettingsError:
        pytest.skip("this machine has no IPv6 loopback")


def test_a_ready_file_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="ready file") as caught:
        write_ready_file(str(tmp_path / "missing" / "ready.json"), url="http://x")
    assert caught.value.param == "ready_file"


SERVER_PROGRAM = """
import asyncio, sys, uvloop
from headrace.server.listener import bound_listener
from headrace.server.run import serve_engine
from headrace.server.settings import ServerSettings
from headrace.aio.stop import StopRequest, stopped_by_signals
from headrace.testing.fake_engine import FakeEngine

async def main(ready_file, death_comes):
    stop = StopRequest()
    settings = ServerSettings(ready_file=ready_file, drain_timeout_s=20, health_interval_s=0.05)
    async with FakeEngine() as engine, asyncio.TaskGroup() as group:
        engine.hold(after_tokens=2)
        async def react():
            if death_comes:
                await engine.until(lambda: engine.num_live == 1)
                engine.die()
            else:
                await stop.requested.wait()
                engine.release()
        group.create_task(react())
        with stopped_by_signals(stop), bound_listener("127.0.0.1", 0) as listener:
            await serve_engine(engine, settings, listener=listener, stop=stop)

uvloop.run(main(sys.argv[1], sys.argv[2] == "dies"))
"""


@contextlib.asynccontextmanager
async def server_process(tmp_path: Path, fate: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    ready = tmp_path / "ready.json"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", SERVER_PROGRAM, str(ready), fate, stderr=PIPE)
    try:
        yield process, (await content_of(ready))["url"]
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains_the_process_and_it_exits_well(tmp_path: Path, number: signal.Signals) -> None:
    async with server_process(tmp_path, "lives") as (process, url), httpx.AsyncClient(timeout=20) as http:
        async with http.stream("POST", f"{url}/v1/completions", json=STREAM) as response:
            process.send_signal(number)
            assert (await events(response))[-1] == DONE_DATA
        assert await asyncio.wait_for(process.wait(), timeout=20) == 0


async def test_the_process_of_a_dead_engine_exits_with_a_failure(tmp_path: Path) -> None:
    async with server_process(tmp_path, "dies") as (process, url), httpx.AsyncClient(timeout=20) as http:
        async with http.stream("POST", f"{url}/v1/completions", json=STREAM) as response:
            assert DONE_DATA not in await events(response)
        _, stderr = await asyncio.wait_for(process.communicate(), timeout=20)
        assert process.returncode == 1
        assert b"EngineDeadError" in stderr


def test_the_listener_refuses_connections_until_it_serves() -> None:
    with bound_listener("127.0.0.1", 0) as listener, pytest.raises(ConnectionRefusedError):
        socket.create_connection(listener.getsockname(), timeout=5)
