"""The connections to one endpoint: new ones, and idle ones that are used again, the youngest first."""

import asyncio
import os
import ssl
from dataclasses import dataclass

from headrace.errors import UpstreamConnectError, UpstreamTimeoutError
from headrace.gateway.deadlines import Deadlines
from headrace.gateway.upstream.address import Address
from headrace.gateway.upstream.connection import UpstreamConnection, UpstreamTimeouts
from headrace.gateway.upstream.key import Bearer


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatistics:
    """Connections to one endpoint now, and how they came."""

    num_open: int
    num_idle: int
    num_opened: int
    num_reused: int
    num_resent: int
    """Requests sent once more because the idle connection that they were sent on was closed."""


class UpstreamPool:
    """Connections to one address. Belongs to one event loop.

    At most `max_idle` wait for reuse, each for `idle_timeout_s` at the longest; that should be less than the endpoint
    itself waits (uvicorn: 5 s), or requests are sent into connections that are just being closed.
    """

    def __init__(
        self,
        address: Address,
        *,
        timeouts: UpstreamTimeouts,
        max_idle: int,
        idle_timeout_s: float,
        deadlines: Deadlines,
    ) -> None:
        self.address = address
        self.authorization: Bearer | None = None
        """What every request shows as `Authorization`; None: whatever its client does."""
        self._timeouts = timeouts
        self._max_idle = max_idle
        self._idle_timeout_s = idle_timeout_s
        self._deadlines = deadlines
        self._tls: ssl.SSLContext | None = address.tls()
        self._loop = asyncio.get_running_loop()
        self._open: set[UpstreamConnection] = set()
        self._idle: list[UpstreamConnection] = []
        self._num_opened = 0
        self._num_reused = 0
        self.num_resent = 0
        self._is_closed = False

    def take_idle(self) -> UpstreamConnection | None:
        """An idle connection that still looks alive, or None."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable:
                self._num_reused += 1
                return connection
        return None

    async def connect(self) -> UpstreamConnection:
        """A new connection.

        Raises UpstreamConnectError, or UpstreamTimeoutError after the connect time-out. Cancelled, it leaves none open.
        """
        if self._is_closed:
            raise UpstreamConnectError(f"The connections to {self.address.url} are closed.")
        address = self.address
        try:
            async with asyncio.timeout(self._timeouts.connect_s):
                _, connection = await self._loop.create_connection(
                    self._new_connection, address.host, address.port, ssl=self._tls
                )
                self._register(connection)
        except TimeoutError as error:
            message = f"No connection to {address.url} within {self._timeouts.connect_s:g} s."
            raise UpstreamTimeoutError(message, code="upstream_connect_timeout") from error
        except OSError as error:
            raise UpstreamConnectError(f"No connection to {address.url}: {_cause(error)}.") from error
        return connection

    def _new_connection(self) -> UpstreamConnection:
        return UpstreamConnection(
            timeouts=self._timeouts, name=self.address.url, on_idle=self._put_back, on_lost=self._forget
        )

    def _register(self, connection: UpstreamConnection) -> None:
        if not connection.is_usable:  # lost again before we heard that it was made
            raise UpstreamConnectError(f"Endpoint {self.address.url} closed a new connection at once.")
        if self._is_closed:
            connection.abandon()
            raise UpstreamConnectError(f"The connections to {self.address.url} are closed.")
        self._open.add(connection)
        self._num_opened += 1
        self._deadlines.watch(connection)

    def _put_back(self, connection: UpstreamConnection) -> None:
        if self._is_closed or len(self._idle) >= self._max_idle:
            connection.abandon()
            return
        connection.deadline_s = self._loop.time() + self._idle_timeout_s
        self._idle.append(connection)

    def _forget(self, connection: UpstreamConnection) -> None:
        self._deadlines.forget(connection)
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def close(self) -> None:
        """Cut every connection and open no more; whoever waits for an answer is told so. Idempotent."""
        self._is_closed = True
        for connection in tuple(self._open):
            connection.cut(f"The connections to {self.address.url} are closed.")
        self._idle.clear()

    def statistics(self) -> PoolStatistics:
        return PoolStatistics(
            num_open=len(self._open),
            num_idle=len(self._idle),
            num_opened=self._num_opened,
            num_reused=self._num_reused,
            num_resent=self.num_resent,
        )

    def __repr__(self) -> str:
        return f"UpstreamPool({self.address.url}, num_open={len(self._open)}, num_idle={len(self._idle)})"


def _cause(error: OSError) -> str:
    """`Connection refused` rather than asyncio's words with the address once more."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message.rstrip('.')}"
    if isinstance(error, ssl.SSLError):  # whose numbers are not those of the system
        return f"TLS failed: {error.reason or error}"
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error)
