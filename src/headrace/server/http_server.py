"""uvicorn, set up to be one part of a process rather than its owner: no signal handlers, no log configuration, no
polling."""

import asyncio
import contextlib
import math
import socket
import ssl
from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp

from headrace.server.protocol import BoundedHttpProtocol, ConnectionBounds
from headrace.server.settings import ServerSettings

_TICK_S = 1.0
"""How often the Date header is renewed."""


class HttpServer(uvicorn.Server):
    """Serves an application until told to stop; `is_listening` is set once connections are taken.

    With `tls` it speaks nothing but TLS.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings, *, tls: ssl.SSLContext | None = None) -> None:
        self.is_listening = asyncio.Event()
        self._is_stopping = asyncio.Event()
        self._connection_ended = asyncio.Event()
        self._close_timeout_s = settings.write_timeout_s
        protocol = partial(
            BoundedHttpProtocol,
            bounds=_bounds(settings),
            on_lost=self._connection_ended.set,
            is_stopping=self._is_stopping.is_set,
        )
        super().__init__(
            uvicorn.Config(
                app,
                http=cast("Any", protocol),  # uvicorn only calls it
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="warning",  # that it starts and ends is said by whoever runs it
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=math.ceil(settings.keep_alive_s),
            )
        )
        self.config.load()
        self.config.ssl = tls

    def stop_accepting(self) -> None:
        """Close the listener and idle connections; `serve` returns when the last running request has ended."""
        self.should_exit = True
        self._is_stopping.set()

    def cancel_requests(self) -> None:
        """End the requests that still run and drop every connection, so that `serve` returns."""
        for task in list(self.server_state.tasks):
            task.cancel()
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    async def until_no_connection(self) -> None:
        while self.server_state.connections:
            self._connection_ended.clear()
            await self._connection_ended.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Whoever runs this server handles the signals: two handlers would take them from each other."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """uvicorn's own leaves it to the loop how long a TLS connection may take to close."""
        loop = asyncio.get_running_loop()
        tls = self.config.ssl
        self.servers = [
            await loop.create_server(
                self._make_protocol,
                sock=listener,
                ssl=tls,
                backlog=self.config.backlog,
                ssl_shutdown_timeout=None if tls is None else self._close_timeout_s,
            )
            for listener in sockets or []
        ]
        self.started = True
        self.is_listening.set()

    def _make_protocol(self) -> asyncio.Protocol:
        make = cast("Any", self.config.http_protocol_class)
        protocol: asyncio.Protocol = make(config=self.config, server_state=self.server_state, app_state={})
        return protocol

    async def main_loop(self) -> None:
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TICK_S):
                    await self._is_stopping.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Returns when every connection has ended, which only `cancel_requests` hastens."""
        for server in self.servers:
            server.close()
        for listener in sockets or []:
            listener.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        await self.until_no_connection()
        while tasks := set(self.server_state.tasks):
            await asyncio.wait(tasks)


def _bounds(settings: ServerSettings) -> ConnectionBounds:
    return ConnectionBounds(
        max_connections=settings.max_connections,
        max_head_bytes=settings.max_head_bytes,
        head_timeout_s=settings.head_timeout_s,
        body_timeout_s=settings.body_timeout_s,
        write_timeout_s=settings.write_timeout_s,
    )
