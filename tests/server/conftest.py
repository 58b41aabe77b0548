"""A fake engine behind the real HTTP server, in this process, on a free port."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import uvloop

import openai
from headrace.aio.tasks import TaskOwner
from headrace.server.app import build_app, open_serving
from headrace.server.engine_seam import Engine
from headrace.server.http_server import HttpServer
from headrace.server.listener import bound_listener, url_of
from headrace.server.serving import LiveRequests
from headrace.server.settings import ServerSettings
from headrace.server.tls import tls_context
from headrace.testing.fake_engine import FakeEngine


@dataclass(frozen=True)
class RunningServer:
    url: str
    host: str
    port: int
    live: LiveRequests
    http: httpx.AsyncClient
    openai: openai.AsyncOpenAI
    http_server: HttpServer


Serve = Callable[..., AbstractAsyncContextManager[RunningServer]]


@contextlib.asynccontextmanager
async def _serving(engine: Engine, settings: ServerSettings | None = None) -> AsyncIterator[RunningServer]:
    settings = settings or ServerSettings(port=0)
    serving = await open_serving(engine, settings)
    tls = tls_context(settings)
    server = HttpServer(build_app(serving), settings, tls=tls)
    async with TaskOwner("test server") as owner:
        with bound_listener("127.0.0.1", 0) as listener:
            url = url_of(listener, is_tls=tls is not None)
            host, port = listener.getsockname()
            task = owner.spawn(server.serve(sockets=[listener]), name="http")
            await server.is_listening.wait()
            try:
                async with (
                    httpx.AsyncClient(base_url=url, timeout=20, verify=False) as http,
                    httpx.AsyncClient(timeout=20, verify=False) as for_official,
                ):
                    official = openai.AsyncOpenAI(
                        base_url=f"{url}/v1", api_key="none", max_retries=0, http_client=for_official
                    )
                    yield RunningServer(url, host, port, serving.live, http, official, server)
            finally:  # a listener that a failed test leaves open would hold the loop for ever
                server.stop_accepting()
                await asyncio.wait({task}, timeout=5)
            assert task.done(), "a request still runs though its client has gone"
            now = serving.live.statistics()
            assert (now.num_requests, now.num_generations) == (0, 0)


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, Any]:
    """The loop that the server runs on everywhere else."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
def serve() -> Serve:
    """`async with serve(engine, settings) as server`: a server for one test."""
    return _serving


@pytest.fixture(scope="module")
def serve_anywhere() -> Serve:
    """The same for a module's tests, which run it on a loop of theirs."""
    return _serving


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    """Answers with the prompt; nothing may be left running in it."""
    async with FakeEngine() as engine:
        yield engine
        assert engine.num_live == 0


@pytest.fixture
async def server(engine: FakeEngine, serve: Serve) -> AsyncIterator[RunningServer]:
    async with serve(engine) as server:
        yield server
