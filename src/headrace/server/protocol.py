"""uvicorn's HTTP/1.1 connection with the bounds it lacks.

A request's head may take only so many bytes and seconds, its body so many seconds even when nobody reads it any more,
and an answer that the client leaves unread is thrown away after a while. Knows nothing of routes.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from headrace.openai.errors import encode_error
from headrace.server.plain_http import PlainHttpParser
from headrace.server.unread import UnreadWatch

CUT_CONNECTION = "headrace.cut_connection"
"""The ASGI extension that closes the connection at once, throwing away what the client has not read."""

_INVALID_REQUEST = "invalid_request_error"
_MAX_WAITING_REQUESTS = 128
"""Requests that a client may have sent ahead while the first of them is answered. One read of the socket can hold
thousands, and every one that waits takes memory."""
_LATE_BODY_GRACE_S = 1.0
"""Between the deadline of a body, whose client is told, and the end of a connection that goes on sending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionBounds:
    """What one client may take of the server before any route sees its request."""

    max_connections: int
    max_head_bytes: int
    """Kept to one read of the socket: a head that arrives whole in one piece passes, and what arrives together with
    other requests is not counted."""
    head_timeout_s: float
    body_timeout_s: float
    write_timeout_s: float


class _TooManyWaitingError(Exception):
    """Goes no further than the parser."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection. `on_lost` is called when it has ended, its last bytes sent; one that is made when the server
    `is_stopping` already is closed, unanswered, for its client to go elsewhere.
    """

    def __init__(
        self,
        *args: Any,
        bounds: ConnectionBounds,
        on_lost: Callable[[], None],
        is_stopping: Callable[[], bool],
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.parser = cast("Any", PlainHttpParser(self))  # uvicorn only calls it
        self.access_log = False  # uvicorn's has the query, which may hold secrets
        self._bounds = bounds
        self._on_lost = on_lost
        self._is_stopping = is_stopping
        self._num_head_bytes: int | None = 0  # None between a head and the next request
        self._num_heads_begun = 0
        self._head_deadline: asyncio.TimerHandle | None = None
        self._body_deadline: asyncio.TimerHandle | None = None
        self._unread: UnreadWatch | None = None
        self._open_cycles: list[RequestResponseCycle] = []

    # -- the connection's life

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._unread = UnreadWatch(transport, timeout_s=self._bounds.write_timeout_s)
        if self._is_stopping():
            transport.close()
        elif len(self.connections) > self._bounds.max_connections:
            self._refuse_connection()
        else:
            self._begin_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head()
        self._end_body()
        if self._unread is not None:
            self._unread.end()
        self._tell_open_cycles()
        super().connection_lost(exc)
        self._on_lost()

    def _tell_open_cycles(self) -> None:
        """uvicorn tells the latest request alone, which is not the one that runs when others wait behind it."""
        for cycle in self._open_cycles:
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        self._open_cycles.clear()

    # -- what the client sends

    def data_received(self, data: bytes) -> None:
        is_within_body = self.cycle is not None and self.cycle.more_body
        num_heads_before = self._num_heads_begun
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._num_head_bytes is not None:
            num_heads = self._num_heads_begun - num_heads_before
            if num_heads == 0 or (num_heads == 1 and not is_within_body):
                self._num_head_bytes += len(data)  # nothing but this head was in it
            if self._num_head_bytes > self._bounds.max_head_bytes:
                self._refuse_head()
        elif self._body_deadline is None and not self.pipeline and self.cycle.more_body:
            deadline_s = self._bounds.body_timeout_s + _LATE_BODY_GRACE_S
            self._body_deadline = self.loop.call_later(deadline_s, self.transport.abort)

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= _MAX_WAITING_REQUESTS:
            raise _TooManyWaitingError  # the parser stops, and `send_400_response` is called
        super().on_message_begin()
        self.scope["extensions"] = {CUT_CONNECTION: {"cut": self.transport.abort}}
        self._num_heads_begun += 1
        self._begin_head()

    def on_headers_complete(self) -> None:
        self._end_head()
        super().on_headers_complete()
        self._open_cycles = [cycle for cycle in self._open_cycles if not cycle.response_complete]
        self._open_cycles.append(self.cycle)

    def on_message_complete(self) -> None:
        if cast("PlainHttpParser", self.parser).is_body_to_come:
            return
        self._end_body()
        super().on_message_complete()

    def _begin_head(self) -> None:
        self._end_head()
        self._num_head_bytes = 0
        self._head_deadline = self.loop.call_later(self._bounds.head_timeout_s, self._close)

    def _end_head(self) -> None:
        self._num_head_bytes = None
        if self._head_deadline is not None:
            self._head_deadline.cancel()
            self._head_deadline = None

    def _end_body(self) -> None:
        if self._body_deadline is not None:
            self._body_deadline.cancel()
            self._body_deadline = None

    # -- what it leaves unread

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._unread is not None:
            self._unread.begin()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread is not None and not self.transport.is_closing():
            self._unread.end()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch_last_bytes()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._watch_last_bytes()

    def shutdown(self) -> None:
        super().shutdown()
        self._watch_last_bytes()

    def _close(self) -> None:
        self.transport.close()
        self._watch_last_bytes()

    def _watch_last_bytes(self) -> None:
        """A transport that closes waits, without end, until its client has read the rest."""
        if self._unread is not None and self.transport.is_closing() and self.transport.get_write_buffer_size():
            self._unread.begin()

    # -- refusals, for which no route is asked

    def send_400_response(self, msg: str) -> None:
        """Called for what is not HTTP. Within an answer there is no room for another: the connection just ends."""
        if any(cycle.response_started and not cycle.response_complete for cycle in self._open_cycles):
            self.transport.abort()
            return
        self._refuse(b"400 Bad Request", message=f"this is not HTTP/1.1: {msg}", code="invalid_http")

    def _refuse_head(self) -> None:
        message = f"the request's head is larger than {self._bounds.max_head_bytes} bytes; send shorter headers"
        self._refuse(b"431 Request Header Fields Too Large", message=message, code="header_too_large")

    def _refuse_connection(self) -> None:
        message = f"{self._bounds.max_connections} connections are open, which is the limit; try again shortly"
        self._refuse(
            b"503 Service Unavailable\r\nretry-after: 1",
            message=message,
            code="overloaded",
            error_type="overloaded_error",
        )

    def _refuse(self, status: bytes, *, message: str, code: str, error_type: str = _INVALID_REQUEST) -> None:
        body = encode_error(message=message, error_type=error_type, code=code)
        self.transport.write(
            b"HTTP/1.1 %s\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s"
            % (status, len(body), body)
        )
        self._close()
