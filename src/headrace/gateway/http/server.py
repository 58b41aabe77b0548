"""The listening socket and its connections. Hands every request to one handler; knows nothing of what it does."""

import asyncio
import logging
import socket
from collections.abc import Coroutine
from dataclasses import dataclass

from headrace.aio.tasks import TaskOwner
from headrace.errors import HeadraceError
from headrace.gateway.deadlines import Deadlines
from headrace.gateway.http.connection import ClientConnection, ConnectionLimits, Handler
from headrace.gateway.http.request_reader import KnownHeads

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpServerStatistics:
    """What the server holds now, and what it refused before any handler saw it."""

    num_connections: int
    num_held_body_bytes: int
    num_refused: int
    num_accepted: int


class HttpServer:
    """Accepts connections on one address and serves each with `handler`.

    `start`, then `drain` (no new work, what is under way is finished), then `aclose` (what is left is cut).
    """

    def __init__(
        self,
        handler: Handler,
        *,
        limits: ConnectionLimits,
        max_connections: int,
        max_held_body_bytes: int,
        deadlines: Deadlines,
    ) -> None:
        self.handler = handler
        self.is_draining = False
        self.known_heads = KnownHeads()
        self._limits = limits
        self._max_connections = max_connections
        self._max_held_body_bytes = max_held_body_bytes
        self._deadlines = deadlines
        self._owner = TaskOwner("client connections")
        self._connections: set[ClientConnection] = set()
        self._num_held_body_bytes = 0
        self._num_refused = 0
        self._num_accepted = 0
        self._empty = asyncio.Event()
        self._empty.set()
        self._listener: asyncio.Server | None = None

    async def start(self, *, host: str, port: int, shares_port: bool = False) -> int:
        """Listen, and return the port (which the system chooses for port 0); `shares_port` lets other processes of this
        user listen there too, each of which gets its part of the connections. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(
            lambda: ClientConnection(server=self, limits=self._limits),
            host,
            port,
            backlog=1024,
            reuse_port=shares_port or None,
        )
        bound: int = self._listener.sockets[0].getsockname()[1]
        return bound

    async def drain(self, *, timeout_s: float) -> bool:
        """Stop accepting and wait until every connection has ended; False if some had not within `timeout_s`."""
        self.is_draining = True
        if self._listener is not None:
            self._listener.close()
        for connection in tuple(self._connections):
            connection.drain()
        try:
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()
        except TimeoutError:
            _LOG.warning("%d connections had not ended after %.1f s and are cut", len(self._connections), timeout_s)
            return False
        return True

    async def aclose(self) -> None:
        """Cut what is left and wait for its tasks. Idempotent."""
        self.is_draining = True
        if self._listener is not None:
            self._listener.close()
        for connection in tuple(self._connections):
            connection.abort()
        await self._owner.aclose()
        await self._empty.wait()

    # for the connections

    @property
    def is_full(self) -> bool:
        return len(self._connections) > self._max_connections

    def add(self, connection: ClientConnection) -> None:
        self._connections.add(connection)
        self._empty.clear()
        self._num_accepted += 1
        self._deadlines.watch(connection)

    def remove(self, connection: ClientConnection) -> None:
        self._deadlines.forget(connection)
        self._connections.discard(connection)
        if not self._connections:
            self._empty.set()

    def spawn(self, coro: Coroutine[object, object, None]) -> asyncio.Task[None]:
        return self._owner.spawn(coro, name="client connection")

    def hold(self, num_bytes: int) -> bool:
        self._num_held_body_bytes += num_bytes
        return num_bytes <= 0 or self._num_held_body_bytes <= self._max_held_body_bytes

    def count_refusal(self, error: HeadraceError) -> None:
        self._num_refused += 1
        _LOG.debug("refused a client with status %d: %s", error.status_hint, error.message)

    def statistics(self) -> HttpServerStatistics:
        return HttpServerStatistics(
            num_connections=len(self._connections),
            num_held_body_bytes=self._num_held_body_bytes,
            num_refused=self._num_refused,
            num_accepted=self._num_accepted,
        )

    def __repr__(self) -> str:
        state = "draining" if self.is_draining else "open"
        return f"HttpServer({state}, num_connections={len(self._connections)})"


def url_of(*, host: str, port: int) -> str:
    """The URL under which something on this machine reaches a server that listens on `host`."""
    if host in {"", "0.0.0.0"}:  # noqa: S104 - compared, not bound
        host = "127.0.0.1"
    if host == "::":
        host = "::1"
    is_v6 = ":" in host and socket.has_ipv6
    return f"http://[{host}]:{port}" if is_v6 else f"http://{host}:{port}"
