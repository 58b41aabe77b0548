"""One small request of the gateway's own to an endpoint: its whole answer, bounded. For probes, not for clients."""

import asyncio
from dataclasses import dataclass

from headrace.errors import UpstreamError, UpstreamProtocolError
from headrace.gateway.http.message import ResponseHead
from headrace.gateway.upstream.connection import UpstreamConnection
from headrace.gateway.upstream.pool import UpstreamPool

_MAX_BODY_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """Status and body of an answer."""

    status: int
    body: bytes


async def fetch(pool: UpstreamPool, path: str, *, timeout_s: float) -> Fetched:
    """GET `path` of the endpoint. Raises an UpstreamError, or TimeoutError after `timeout_s`.

    However it ends, its connection is reusable or closed.
    """
    async with asyncio.timeout(timeout_s):
        connection = await pool.connect()
        collector = _Collector(connection)
        address = pool.address
        target = address.prefix + path.encode("ascii")
        head = b"GET %b HTTP/1.1\r\nhost: %b\r\nconnection: close\r\n\r\n" % (target, address.host_header)
        try:
            connection.send([head], sink=collector)
            return await collector.done
        finally:
            if not collector.done.done():  # after its end the connection may already serve somebody else
                connection.abandon()


class _Collector:
    def __init__(self, connection: UpstreamConnection) -> None:
        self.done: asyncio.Future[Fetched] = asyncio.get_running_loop().create_future()
        self._connection = connection
        self._status = 0
        self._parts: list[bytes] = []
        self._num_bytes = 0

    def on_head(self, head: ResponseHead) -> None:
        self._status = head.status

    def on_body(self, data: bytes) -> None:
        self._parts.append(data)
        self._num_bytes += len(data)
        if self._num_bytes > _MAX_BODY_BYTES:
            self._connection.abandon()
            self.on_end(UpstreamProtocolError(f"The answer to a probe has more than {_MAX_BODY_BYTES} bytes."))

    def on_read_end(self) -> None:
        """Nothing to hand on."""

    def on_end(self, error: UpstreamError | None) -> None:
        if self.done.done():
            return
        if error is not None:
            self.done.set_exception(error)
        else:
            self.done.set_result(Fetched(status=self._status, body=b"".join(self._parts)))
