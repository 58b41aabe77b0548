"""One request of the gateway's own to an endpoint: its whole answer, bounded. For what no client waits for in bytes."""

import asyncio
from dataclasses import dataclass

from headrace.errors import UpstreamConnectError, UpstreamError, UpstreamProtocolError
from headrace.gateway.http.message import ResponseHead
from headrace.gateway.upstream.connection import UpstreamConnection
from headrace.gateway.upstream.pool import UpstreamPool

_MAX_BODY_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """Status and body of an answer."""

    status: int
    body: bytes
    retry_after: str | None = None
    """The Retry-After field as it came."""


async def fetch(pool: UpstreamPool, path: str, *, timeout_s: float) -> Fetched:
    """GET `path` of the endpoint. Raises an UpstreamError, or TimeoutError after `timeout_s`.

    However it ends, its connection is reusable or closed.
    """
    async with asyncio.timeout(timeout_s):
        connection = await pool.connect()
        address = pool.address
        target = address.prefix + path.encode("ascii")
        own = b"" if pool.authorization is None else b"authorization: %b\r\n" % pool.authorization.value
        head = b"GET %b HTTP/1.1\r\nhost: %b\r\n%bconnection: close\r\n\r\n" % (target, address.host_header, own)
        return await _collect(connection, (head,), max_bytes=_MAX_BODY_BYTES, is_last=True)


async def post(pool: UpstreamPool, path: str, body: bytes, *, max_answer_bytes: int) -> Fetched:
    """POST the JSON `body`, over an idle connection where there is one. Raises an UpstreamError; the deadline is the
    caller's. However it ends, its connection is reusable or closed."""
    address = pool.address
    fields = [(b"host", address.host_header), (b"content-type", b"application/json")]
    if pool.authorization is not None:
        fields.append((b"authorization", pool.authorization.value))
    lines = b"".join([b"%b: %b\r\n" % field for field in fields])
    target = address.prefix + path.encode("ascii")
    head = b"POST %b HTTP/1.1\r\n%bcontent-length: %d\r\n\r\n" % (target, lines, len(body))
    if (idle := pool.take_idle()) is not None:
        try:
            return await _collect(idle, (head, body), max_bytes=max_answer_bytes)
        except UpstreamConnectError:
            pass  # the endpoint closed it while we sent; a fresh one tells whether it is there
    return await _collect(await pool.connect(), (head, body), max_bytes=max_answer_bytes)


async def _collect(
    connection: UpstreamConnection, parts: tuple[bytes, ...], *, max_bytes: int, is_last: bool = False
) -> Fetched:
    collector = _Collector(connection, max_bytes=max_bytes)
    try:
        connection.send(parts, sink=collector, is_last=is_last)
        return await collector.done
    finally:
        if not collector.has_ended:  # after its end the connection may already serve somebody else
            connection.abandon()


class _Collector:
    def __init__(self, connection: UpstreamConnection, *, max_bytes: int) -> None:
        self.done: asyncio.Future[Fetched] = asyncio.get_running_loop().create_future()
        self.has_ended = False
        self._connection = connection
        self._max_bytes = max_bytes
        self._status = 0
        self._retry_after: str | None = None
        self._parts: list[bytes] = []
        self._num_bytes = 0

    def on_head(self, head: ResponseHead) -> None:
        self._status = head.status
        found = (value for name, value in head.headers if name == b"retry-after")
        self._retry_after = next(found, b"").decode("latin-1") or None

    def on_body(self, data: bytes) -> None:
        self._parts.append(data)
        self._num_bytes += len(data)
        if self._num_bytes > self._max_bytes:
            self._connection.abandon()
            self.on_end(UpstreamProtocolError(f"The answer has more than {self._max_bytes} bytes."))

    def event_pipe(self) -> None:
        return None

    def on_read_end(self) -> None:
        """Nothing to hand on."""

    def on_end(self, error: UpstreamError | None) -> None:
        self.has_ended = True
        if self.done.done():
            return
        if error is not None:
            self.done.set_exception(error)
        else:
            body = b"".join(self._parts)
            self.done.set_result(Fetched(status=self._status, body=body, retry_after=self._retry_after))
