"""The engine server's process: engine up, socket open, requests served, drained, engine down."""

import asyncio
import contextlib
import gc
import logging
import socket
import ssl
from collections.abc import Iterator
from typing import Literal

from prometheus_client import CollectorRegistry

from headrace.aio.bridge import make_async
from headrace.aio.stall import LoopStallMonitor
from headrace.aio.stop import StopRequest, catch_signals, stopped_by_signals
from headrace.aio.tasks import TaskOwner
from headrace.engine import AsyncEngineArgs, AsyncLLMEngine, FrontEndSettings
from headrace.errors import EngineDeadError, EngineStalledError
from headrace.ready_file import write_ready_file
from headrace.server.app import build_app, open_serving
from headrace.server.cut import leave_when
from headrace.server.engine_seam import Engine
from headrace.server.http_server import HttpServer
from headrace.server.listener import open_listener, url_of
from headrace.server.serving import LiveRequests
from headrace.server.settings import ServerSettings
from headrace.server.tls import renewed_by_hangup, tls_context
from headrace.tokenization import TokenizationService, TokenizationSettings

_LOG = logging.getLogger(__name__)

_LAST_EVENTS_S = 5.0
"""How long aborted requests, and those of a dead engine, may take to tell their clients."""


async def run_server(
    engine_args: AsyncEngineArgs,
    settings: ServerSettings,
    *,
    front_end: FrontEndSettings | None = None,
    tokenization: TokenizationSettings | None = None,
) -> None:
    """Serve `engine_args.model` until SIGTERM or SIGINT; returns when everything has ended.

    Raises SettingsError for what cannot be started, and EngineDeadError when the engine's core died, so that the
    process ends with a failure and a supervisor starts it again.
    """
    stop = StopRequest()
    registry = CollectorRegistry()
    tls = tls_context(settings)
    with stopped_by_signals(stop), renewed_by_hangup(tls, settings), open_listener(settings) as listener:
        async with TokenizationService(tokenization, registry=registry) as service:
            engine = AsyncLLMEngine.from_engine_args(
                engine_args, settings=front_end, tokenization=service, registry=registry
            )
            try:
                async with leave_when(stop.requested.wait, name="stop while starting") as interrupted:
                    await engine.start_background_loop()
                catch_signals(stop)
                if not interrupted.happened:
                    async with LoopStallMonitor(registry=registry, sections=service.sections):
                        with _long_lived():
                            await serve_engine(engine, settings, listener=listener, stop=stop, tls=tls)
            finally:
                await engine.shutdown_background_loop()


async def serve_engine(
    engine: Engine,
    settings: ServerSettings,
    *,
    listener: socket.socket,
    stop: StopRequest,
    tls: ssl.SSLContext | None = None,
) -> None:
    """Serve a running engine on `listener` until `stop` is requested or the engine dies, then drain.

    Raises EngineDeadError in the second case.
    """
    serving = await open_serving(engine, settings)
    server = HttpServer(build_app(serving), settings, tls=tls)
    async with TaskOwner("engine server") as owner:
        http = owner.spawn(server.serve(sockets=[listener]), name="http")
        listening = owner.spawn(server.is_listening.wait(), name="listening")
        await asyncio.wait({http, listening}, return_when=asyncio.FIRST_COMPLETED)
        if http.done():
            http.result()
        await _announce(url_of(listener, is_tls=tls is not None), settings)

        stopped = owner.spawn(stop.requested.wait(), name="stop")
        death = owner.spawn(_death_of(engine, interval_s=settings.health_interval_s), name="engine watch")
        await asyncio.wait({http, stopped, death}, return_when=asyncio.FIRST_COMPLETED)

        server.stop_accepting()
        if death.done():
            _LOG.error("the engine is dead, so the server ends: %s", death.result())
        else:
            hurry = owner.spawn(stop.repeated.wait(), name="hurry")
            await _drain(http, hurry, serving.live, timeout_s=settings.drain_timeout_s)
            await _abort_rest(engine, serving.live)
        await _end(server, http)
        if death.done():
            raise death.result()
    _LOG.info("stopped")


@contextlib.contextmanager
def _long_lived() -> Iterator[None]:
    """What there is now stays, and the garbage collector need not walk through it: that would hold the event loop, for
    some tens of milliseconds, whenever it looks at everything."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


async def _announce(url: str, settings: ServerSettings) -> None:
    if settings.ready_file is not None:
        await make_async(write_ready_file)(settings.ready_file, url=url)
    _LOG.info("ready at %s", url)


async def _death_of(engine: Engine, *, interval_s: float) -> EngineDeadError:
    """Returns, when the engine has died, what it says of it."""
    while True:
        try:
            await engine.check_health()
        except EngineDeadError as error:
            return error
        except EngineStalledError as error:
            _LOG.warning("%s", error)
        await asyncio.sleep(interval_s)


async def _drain(
    http: "asyncio.Task[None]", hurry: "asyncio.Task[Literal[True]]", live: LiveRequests, *, timeout_s: float
) -> None:
    """Returns when every request has ended, when `timeout_s` is over, or when somebody is in a hurry."""
    _LOG.info("stopping; %r may take %g s to end", live, timeout_s)
    await asyncio.wait({http, hurry}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)


async def _abort_rest(engine: Engine, live: LiveRequests) -> None:
    """What still runs ends with an error for its client. An engine that hangs does not keep the server from ending."""
    if request_ids := live.engine_ids():
        _LOG.warning("aborting %d requests that did not end in time", len(request_ids))
        with contextlib.suppress(TimeoutError, EngineDeadError):
            async with asyncio.timeout(_LAST_EVENTS_S):
                await engine.abort(request_ids)


async def _end(server: HttpServer, http: "asyncio.Task[None]") -> None:
    """Give answers that are being written a moment, then end the HTTP server whatever its clients do."""
    await asyncio.wait({http}, timeout=_LAST_EVENTS_S)
    if not http.done():
        server.cancel_requests()
        await asyncio.wait({http}, timeout=_LAST_EVENTS_S)
    if http.done():
        http.result()
