"""One connection to an endpoint: a request out, its answer in, as it arrives.

Rule 1: an answer is over only when its framing says so. A connection that ends earlier is an error, but for bodies that
have no other end (no Content-Length, no chunks) and whose connection was closed in order.
Rule 2: a connection is used again only when the last request was sent and its answer read to their ends, nothing came
after that, and neither side said that it would close.
Rule 3: what does not follow HTTP closes the connection; nothing is guessed.
Rule 4: a read that is whole chunks, as the events of a stream come, goes past llhttp, which stands between two chunks
before and after and does not miss them.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import httptools

from headrace.errors import UpstreamConnectError, UpstreamError, UpstreamProtocolError, UpstreamTimeoutError
from headrace.gateway.http.chunks import content_of_chunks
from headrace.gateway.http.message import ResponseHead
from headrace.gateway.http.plain_events import EventPipe, num_plain_events
from headrace.gateway.http.whole import Whole, whole_message

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

    def event_pipe(self) -> EventPipe | None:
        """Asked after a read that ended between chunks: where reads of whole events that tell no usage may go from now
        on, until a read is something else; the sink does not hear of them. None: nowhere."""

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
        self._is_last = False
        self._is_complete = False
        self._is_dirty = False
        self._ends_with_connection = False
        self._is_chunked = False
        self._is_in_chunk = False
        self._is_between_chunks = False
        self._pipe: EventPipe | None = None
        self._known: _KnownHead | None = None
        self.num_exchanges = 0
        self.has_answered = False
        """Whether any byte of the current answer has come."""
        self.deadline_s: float | None = None

    @property
    def is_usable(self) -> bool:
        """Whether an exchange can start."""
        return self._sink is None and not self._is_dirty and not self._transport.is_closing()

    def send(self, parts: Sequence[bytes], *, sink: AnswerSink, is_last: bool = False) -> None:
        """Send a request; its answer goes to `sink`. `is_last`: the request says that no other follows it."""
        assert self.is_usable, self
        self._is_last = is_last
        self._sink = sink
        self._is_complete = False
        self.has_answered = False
        self.num_exchanges += 1
        self.deadline_s = self._loop.time() + self._timeouts.first_byte_s
        self._transport.writelines(list(parts))

    def abandon(self) -> None:
        """Nobody wants the answer any more: close at once, so that the endpoint stops working on it. The sink hears
        nothing more. Safe to call at any time."""
        self._sink = self._pipe = None
        self.deadline_s = None
        self._is_dirty = True
        self._transport.abort()

    def cut(self, why: str) -> None:
        """Close at once; the sink hears `why` as an error. Safe to call at any time."""
        if self._sink is None:
            self.abandon()
        else:
            fault = UpstreamProtocolError if self.has_answered else UpstreamConnectError
            self._fail(fault(why))

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
        pipe = self._pipe
        if pipe is not None and (num_events := num_plain_events(data)):
            # Nearly every token of every stream comes here, so nothing is asked that `event_pipe` has answered.
            self.deadline_s = self._loop.time() + self._timeouts.idle_s
            pipe.num_events += num_events
            if not pipe.transport.is_closing():
                pipe.transport.write(data)
            return
        if self._is_between_chunks and self._pass_chunks(data):
            return
        whole = None if self.has_answered else whole_message(data)
        self.has_answered = True
        if whole is not None and self._known is not None and whole.head == self._known.head and not self._is_dirty:
            self._take_whole(self._known.answer(whole), data[whole.body_at :])
            return
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
        if whole is not None and self._is_complete and not self._is_dirty:
            self._known = self._known_head(whole)
        self._is_between_chunks = self._is_chunked and not self._is_in_chunk and data.endswith(b"\r\n")
        self._after_read()
        self._open_pipe()

    def _pass_chunks(self, data: bytes) -> bool:
        """Hand on a read that is whole chunks; False for any other (rule 4)."""
        content = None if self._is_dirty else content_of_chunks(data)
        if content is None:
            return False
        assert self._sink is not None
        self.deadline_s = self._loop.time() + self._timeouts.idle_s  # before the sink, which may pause
        self._sink.on_body(content)
        if self._sink is not None:
            self._sink.on_read_end()
        self._open_pipe()
        return True

    def _open_pipe(self) -> None:
        """After a read: whether the next one may pass unseen, if it is whole events."""
        self._pipe = None
        if self._sink is not None and self._is_between_chunks and not self._is_dirty:
            self._pipe = self._sink.event_pipe()

    def _known_head(self, whole: Whole) -> "_KnownHead | None":
        """What was just read, for the next answer like it."""
        names = [name for name, _ in self._headers]
        status = self._parser.get_status_code()
        if not self._can_reuse or status in {204, 304} or b"transfer-encoding" in names:
            return None
        if names.count(b"content-length") != 1:
            return None
        head = _head_of(status, self._reason, self._headers)
        return _KnownHead(whole.head, answer=head, length_at=names.index(b"content-length"))

    def _take_whole(self, head: ResponseHead, body: bytes) -> None:
        """An answer like the last one, whole: what the parser would have said of it."""
        assert self._sink is not None
        self._can_reuse = not self._is_last
        self._head = head
        self._sink.on_head(head)
        if self._sink is not None and body:
            self._sink.on_body(body)
        if self._sink is not None:
            self._complete(self._sink)

    def _after_read(self) -> None:
        """Hand on what the parser found; the sink may give up at any call."""
        sink = self._sink
        if sink is None:
            return
        if self._is_complete:
            self._complete(sink)
            return
        sink.on_read_end()
        if self._sink is not None and self._head is not None and self._transport.is_reading():
            self.deadline_s = self._loop.time() + self._timeouts.idle_s  # a head in drips gets no more time

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
        if self._is_dirty or self._sink is None:
            return
        if status == 101:
            self._fail(UpstreamProtocolError(f"Endpoint {self._name} switched protocols without being asked to."))
        if status < 200:
            return
        codings = [value.strip().lower() for name, value in self._headers if name == b"transfer-encoding"]
        self._is_chunked = is_chunked = codings == [b"chunked"]
        if codings and not is_chunked:
            self._fail(UpstreamProtocolError(f"Endpoint {self._name} sent a transfer coding that nobody asked for."))
            return
        head = _head_of(status, self._reason, self._headers)
        self._can_reuse = self._parser.should_keep_alive() and not self._is_last
        self._ends_with_connection = head.content_length is None and not is_chunked and status not in {204, 304}
        self._head = head
        self._sink.on_head(head)

    def on_chunk_header(self) -> None:
        self._is_in_chunk = True

    def on_chunk_complete(self) -> None:
        self._is_in_chunk = False

    def on_body(self, data: bytes) -> None:
        if self._sink is not None and not self._is_complete:
            self._sink.on_body(data)

    def on_message_complete(self) -> None:
        if self._head is not None:  # None: an interim answer such as 100
            self._is_complete = True
            self._head = None

    # the ends of an exchange

    def _complete(self, sink: AnswerSink) -> None:
        self._sink = self._pipe = None
        self._head = None
        self._ends_with_connection = False
        self._is_chunked = False
        self._is_between_chunks = False
        self.deadline_s = None
        is_unsent = self._transport.get_write_buffer_size() > 0  # it answered before it had read the whole request
        can_reuse = self._can_reuse and not self._is_dirty and not is_unsent and not self._transport.is_closing()
        if not can_reuse:
            self._is_dirty = True
            if is_unsent:
                self._transport.abort()  # closing would wait until the rest is read
            else:
                self._transport.close()
        sink.on_end(None)
        if can_reuse:
            self._on_idle(self)

    def _fail(self, error: UpstreamError) -> None:
        sink, self._sink, self._pipe = self._sink, None, None
        self._is_dirty = True
        self.deadline_s = None
        self._transport.abort()
        if sink is not None:
            sink.on_end(error)

    def __repr__(self) -> str:
        state = "busy" if self._sink else "dirty" if self._is_dirty else "idle"
        return f"UpstreamConnection({self._name}, {state}, num_exchanges={self.num_exchanges})"


class _KnownHead:
    """A head that was understood, and the answers that come behind heads like it."""

    __slots__ = ("_answer", "_facts", "_length_at", "head")

    def __init__(self, head: bytes, *, answer: ResponseHead, length_at: int) -> None:
        self.head = head
        self._answer = answer
        self._length_at = length_at
        self._facts = answer.facts

    def answer(self, whole: Whole) -> ResponseHead:
        known = self._answer
        headers = known.headers.copy()
        headers[self._length_at] = (b"content-length", whole.digits)
        return ResponseHead(
            status=known.status,
            reason=known.reason,
            headers=headers,
            content_length=int(whole.digits),
            is_event_stream=known.is_event_stream,
            is_json=known.is_json,
            known=self._facts,
        )


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
