"""One connection to an endpoint: a request out, its answer in, as it arrives.

Rule 1: an answer is over only when its framing says so. A connection that ends earlier is an error, but for bodies that
have no other end (no Content-Length, no chunks) and whose connection was closed in order.
Rule 2: a connection is used again only when the last answer was read to its end, nothing came after it, and neither
side said that it would close.
Rule 3: what does not follow HTTP closes the connection; nothing is guessed.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import httptools

from headrace.errors import UpstreamConnectError, UpstreamError, UpstreamProtocolError, UpstreamTimeoutError
from headrace.gateway.http.message import ResponseHead

_LOG = logging.getLogger(__name__)

_MAX_HEAD_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamTimeouts:
    """How long an endpoint may take, in seconds."""

    connect_s: float
    first_byte_s: float
    """From the whole request handed over to the head of the answer."""
    idle_s: float
    """Between two reads of an answer's body."""


class AnswerSink(Protocol):
    """Who takes an answer. Called in order: head, body parts, `on_read_end` after each read of the socket, then once
    `on_end`. All are called from the loop and must not block."""

    def on_head(self, head: ResponseHead) -> None: ...

    def on_body(self, data: bytes) -> None: ...

    def on_read_end(self) -> None: ...

    def on_end(self, error: UpstreamError | None) -> None:
        """The answer is complete, or ended by `error`; nothing more is called."""


class UpstreamConnection(asyncio.Protocol):
    """One connection. `send` starts an exchange; when it has ended well and the connection can be used again,
    `on_idle` is called with it, after `on_end` of the sink."""

    def __init__(
        self,
        *,
        timeouts: UpstreamTimeouts,
        name: str,
        on_idle: Callable[["UpstreamConnection"], None],
        on_lost: Callable[["UpstreamConnection"], None],
    ) -> None:
        self._timeouts = timeouts
        self._name = name
        self._on_idle = on_idle
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self._sink: AnswerSink | None = None
        self._head: ResponseHead | None = None
        self._reason = b""
        self._num_head_bytes = 0
        self._can_reuse = False
        self._is_complete = False
        self._is_dirty = False
        self._ends_with_connection = False
        self.num_exchanges = 0
        self.has_answered = False
        """Whether any byte of the current answer has come."""
        self.deadline_s: float | None = None

    @property
    def is_usable(self) -> bool:
        """Whether an exchange can start."""
        return self._sink is None and not self._is_dirty and not self._transport.is_closing()

    def send(self, parts: Sequence[bytes], *, sink: AnswerSink) -> None:
        """Send a request; its answer goes to `sink`."""
        assert self.is_usable, self
        self._sink = sink
        self._is_complete = False
        self.has_answered = False
        self.num_exchanges += 1
        self.deadline_s = self._loop.time() + self._timeouts.first_byte_s
        self._transport.writelines(list(parts))

    def abandon(self) -> None:
        """Nobody wants the answer any more: close at once, so that the endpoint stops working on it. The sink hears
        nothing more. Safe to call at any time."""
        self._sink = None
        self.deadline_s = None
        self._is_dirty = True
        self._transport.abort()

    def pause_reading(self) -> None:
        """Let the endpoint wait, because the client does; its idle time does not count meanwhile."""
        if not self._transport.is_closing():
            self._transport.pause_reading()
            self.deadline_s = None

    def resume_reading(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()
            if self._sink is not None:
                self.deadline_s = self._loop.time() + self._timeouts.idle_s

    # what the transport tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._sink is None:
            self.abandon()  # an endpoint that speaks without being asked
            return
        self.has_answered = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._is_dirty = True
            if isinstance(error, httptools.HttpParserCallbackError):
                _LOG.error("taking an answer of %s failed", self._name, exc_info=error.__context__)
            if not self._is_complete:
                self._fail(UpstreamProtocolError(f"Endpoint {self._name} sent what is not HTTP/1.1: {error}."))
                return
        if self._head is None and not self._is_complete:
            self._num_head_bytes += len(data)
            if self._num_head_bytes > _MAX_HEAD_BYTES:
                self._fail(UpstreamProtocolError(f"Endpoint {self._name} sent a head without end."))
                return
        self._after_read()

    def _after_read(self) -> None:
        """Hand on what the parser found; the sink may give up at any call."""
        sink = self._sink
        if sink is None:
            return
        if self._is_complete:
            self._complete(sink)
            return
        sink.on_read_end()
        if self._sink is not None and self._transport.is_reading():
            timeout_s = self._timeouts.first_byte_s if self._head is None else self._timeouts.idle_s
            self.deadline_s = self._loop.time() + timeout_s

    def eof_received(self) -> bool:
        if self._sink is not None and self._ends_with_connection:
            self._is_dirty = True
            self._complete(self._sink)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_dirty = True
        self.deadline_s = None
        self._on_lost(self)
        why = f" ({exc})" if exc else ""
        if self.has_answered:
            self._fail(UpstreamProtocolError(f"Endpoint {self._name} closed before its answer was complete{why}."))
        else:
            self._fail(UpstreamConnectError(f"Endpoint {self._name} closed before it answered{why}."))

    def on_deadline(self) -> None:
        if self._sink is None:
            self.abandon()  # idle for long enough
            return
        what = "began no answer" if self._head is None else "fell silent in an answer"
        limit_s = self._timeouts.first_byte_s if self._head is None else self._timeouts.idle_s
        self._fail(UpstreamTimeoutError(f"Endpoint {self._name} {what} within {limit_s:g} s."))

    # llhttp's callbacks, in the order in which they come

    def on_message_begin(self) -> None:
        if self._is_complete:
            self._is_dirty = True  # more than one answer to one request
        self._reason = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._num_head_bytes = 0

    def on_status(self, part: bytes) -> None:
        self._reason += part

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head is None:  # else a trailer, which chunked answers to clients do not carry on
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if self._is_dirty or self._sink is None or (100 <= status < 200 and status != 101):
            return
        head = _head_of(status, self._reason, self._headers)
        is_chunked = any(name == b"transfer-encoding" for name, _ in self._headers)
        self._can_reuse = self._parser.should_keep_alive() and status != 101
        self._ends_with_connection = head.content_length is None and not is_chunked and status not in {204, 304}
        self._head = head
        self._sink.on_head(head)

    def on_body(self, data: bytes) -> None:
        if self._sink is not None and not self._is_complete:
            self._sink.on_body(data)

    def on_message_complete(self) -> None:
        if self._head is not None:  # None: an interim answer such as 100
            self._is_complete = True
            self._head = None

    # the ends of an exchange

    def _complete(self, sink: AnswerSink) -> None:
        self._sink = None
        self._head = None
        self._ends_with_connection = False
        self.deadline_s = None
        can_reuse = self._can_reuse and not self._is_dirty and not self._transport.is_closing()
        if not can_reuse:
            self._is_dirty = True
            self._transport.close()
        sink.on_end(None)
        if can_reuse:
            self._on_idle(self)

    def _fail(self, error: UpstreamError) -> None:
        sink, self._sink = self._sink, None
        self._is_dirty = True
        self.deadline_s = None
        self._transport.abort()
        if sink is not None:
            sink.on_end(error)

    def __repr__(self) -> str:
        state = "busy" if self._sink else "dirty" if self._is_dirty else "idle"
        return f"UpstreamConnection({self._name}, {state}, num_exchanges={self.num_exchanges})"


def _head_of(status: int, reason: bytes, headers: list[tuple[bytes, bytes]]) -> ResponseHead:
    head = ResponseHead(status=status, reason=reason, headers=headers)
    is_plain = True
    media_type = b""
    for name, value in headers:
        if name == b"content-length":
            head.content_length = int(value)
        elif name == b"content-type":
            media_type = value.partition(b";")[0].strip().lower()
        elif name == b"content-encoding":
            is_plain = value.strip().lower() == b"identity"
    head.is_event_stream = is_plain and media_type == b"text/event-stream"
    head.is_json = is_plain and media_type == b"application/json"
    return head
