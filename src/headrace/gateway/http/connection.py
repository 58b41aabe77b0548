"""One client's connection: requests in, one after the other, answers out.

Theory. The reader may find several requests in one read (pipelining); they wait in `_ready` and are answered in order,
one at a time. While an answer is in the making, what the client sends is kept unread in `_backlog`, and reading stops
when that is full. Reading never stops otherwise, because only a socket that is read shows that its client has left.

Rule 1: a client that leaves, also by closing only its sending side, cancels the task that serves it.
Rule 2: every state has a deadline, or waits for the handler, whose own waits have deadlines.
Rule 3: a refused client gets its answer before the connection is reset: after it the connection lingers and discards.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Protocol, cast

from headrace.errors import HeadraceError, OverloadedError, RequestError
from headrace.gateway.http.answers import answer_error
from headrace.gateway.http.message import Request, RequestTimeoutError
from headrace.gateway.http.request_reader import KnownHeads, RequestReader, SizeLimits
from headrace.gateway.http.response_writer import ResponseWriter
from headrace.gateway.http.unread import UnreadWatch

Handler = Callable[[Request, ResponseWriter], Awaitable[None]]
"""Answers one request. Cancelled when the client leaves; whatever else it raises closes the connection."""

_MAX_PIPELINED_REQUESTS = 64
_MIN_BODY_BYTES_PER_S = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Sizes and times that one client's connection must keep."""

    sizes: SizeLimits
    head_timeout_s: float
    body_timeout_s: float
    keepalive_timeout_s: float
    write_timeout_s: float
    linger_timeout_s: float = 1.0


class ConnectionHost(Protocol):
    """What a connection needs of the server that accepted it."""

    @property
    def handler(self) -> Handler: ...

    @property
    def is_full(self) -> bool: ...

    @property
    def is_draining(self) -> bool: ...

    @property
    def known_heads(self) -> KnownHeads: ...

    def add(self, connection: "ClientConnection") -> None: ...

    def remove(self, connection: "ClientConnection") -> None: ...

    def spawn(self, coro: Coroutine[object, object, None]) -> asyncio.Task[None]: ...

    def hold(self, num_bytes: int) -> bool:
        """Count `num_bytes` (negative: give back) of request bodies; False when over the limit of all together."""

    def count_refusal(self, error: HeadraceError) -> None: ...


class ClientConnection(asyncio.Protocol):
    """The protocol of one accepted connection."""

    def __init__(self, *, server: ConnectionHost, limits: ConnectionLimits) -> None:
        self._server = server
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._reader = RequestReader(
            limits=limits.sizes, on_head=self._on_head, on_request=self._on_request, heads=server.known_heads
        )
        self._ready: deque[Request] = deque()
        self._backlog: list[bytes] = []
        self._num_backlog_bytes = 0
        self._arrival: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._writer: ResponseWriter | None = None
        self._task: asyncio.Task[None] | None = None
        self._refusal: HeadraceError | None = None
        self._owes_continue = False
        self._is_last = False
        self._is_lingering = False
        self._is_write_paused = False
        self._unread: UnreadWatch | None = None
        self._num_held_bytes = 0
        self._num_served = 0
        self._body_start_s = 0.0
        self._peer = ""
        self.deadline_s: float | None = None

    # what the transport tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self._peer = str(peer[0]) if isinstance(peer, tuple) else ""
        self._server.add(self)
        if self._server.is_full:
            self._refuse(OverloadedError("Too many connections are open; try again later.", retry_after_s=1.0))
            return
        self._task = self._server.spawn(self._serve())

    def data_received(self, data: bytes) -> None:
        if self._is_lingering or self._is_last or self._refusal is not None:
            return  # nothing after this is answered
        if self._writer is not None or self._ready or self._drained is not None:
            self._keep_for_later(data)
            return
        self._feed(data)

    def eof_received(self) -> bool:
        return False  # rule 1; the transport closes and connection_lost follows

    def pause_writing(self) -> None:
        self._is_write_paused = True
        self._watch_reading()
        if self._writer is not None:
            self._writer.pause()

    def resume_writing(self) -> None:
        self._is_write_paused = False
        if self._transport.is_closing():
            self._watch_reading()
        else:
            self.deadline_s = None
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        if self._writer is not None:
            self._writer.resume()

    def connection_lost(self, _: Exception | None) -> None:
        self.deadline_s = None
        self._hold(0)
        self._reader.close()
        self._server.remove(self)
        task, self._task = self._task, None  # which keeps this connection by its traceback
        if task is not None:
            task.cancel()

    # what the reader tells

    def _on_head(self, awaits_continue: bool) -> None:
        self._owes_continue = awaits_continue
        if not self._ready:  # else once what came before it is answered
            self._send_continue()

    def _send_continue(self) -> None:
        if self._owes_continue:
            self._owes_continue = False
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _on_request(self, request: Request) -> None:
        self._owes_continue = False  # its body came unasked
        request.received_s = time.monotonic()
        request.peer = self._peer
        self.deadline_s = None
        self._ready.append(request)
        if not request.keep_alive or len(self._ready) >= _MAX_PIPELINED_REQUESTS:
            self._is_last = True
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    # the life of the connection

    async def _serve(self) -> None:
        try:
            while (request := await self._next_request()) is not None:
                self._writer = writer = self._begin_answer(request)
                await self._server.handler(request, writer)
                self._end_answer(writer)
                if self._is_write_paused and not self._is_last:
                    await self._wait_until_drained()
                if self._is_last and not self._ready:
                    break
        except BaseException:
            self._transport.abort()
            raise
        if self._refusal is not None and not self._transport.is_closing():
            self._refuse(self._refusal)
        else:
            self._close()

    def _begin_answer(self, request: Request) -> ResponseWriter:
        close_after = self._server.is_draining or (self._is_last and not self._ready)
        writer = ResponseWriter(self._transport, request, close_after=close_after)
        writer.is_paused = self._is_write_paused
        return writer

    def _end_answer(self, writer: ResponseWriter) -> None:
        writer.cut_if_broken_off()
        if writer.closes or not writer.is_finished:
            self._is_last = True
            self._ready.clear()
        self._writer = None
        self._num_served += 1

    async def _next_request(self) -> Request | None:
        if not self._ready:
            self._feed_backlog()
        if not self._ready and self._expects_more:
            self._watch_arrival()
            self._arrival = self._loop.create_future()
            await self._arrival
            self._arrival = None
        return self._ready.popleft() if self._ready else None

    def _watch_arrival(self) -> None:
        """Nothing is answered now, so the client has the next word; part of it may have come with the last request."""
        if self._reader.is_in_body:
            self._send_continue()
            self._watch_body(is_new=self.deadline_s is None)
            return
        self._hold(0)
        is_idle = self._num_served and not self._reader.is_in_head
        self._set_deadline(self._limits.keepalive_timeout_s if is_idle else self._limits.head_timeout_s)

    @property
    def _expects_more(self) -> bool:
        if self._refusal is not None or self._is_last or self._transport.is_closing():
            return False
        return self._is_receiving or not self._server.is_draining

    @property
    def _is_receiving(self) -> bool:
        return self._reader.is_in_head or self._reader.is_in_body

    def _feed(self, data: bytes) -> None:
        was_receiving = self._is_receiving
        was_in_body = self._reader.is_in_body
        try:
            self._reader.feed(data)
        except RequestError as error:
            if not (self._is_last and self._ready):  # llhttp also refuses what follows a last request
                self._note_refusal(error)
            return
        if self._ready:
            return
        if self._reader.is_in_body:
            self._watch_body(is_new=not was_in_body)
        elif self._reader.is_in_head and not was_receiving:
            self._set_deadline(self._limits.head_timeout_s)

    def _watch_body(self, *, is_new: bool) -> None:
        """A body may take its time-out, and longer only as long as it flows at a fair rate."""
        if is_new:
            self._body_start_s = self._loop.time()
        num_bytes = self._reader.num_body_bytes
        self.deadline_s = self._body_start_s + self._limits.body_timeout_s + num_bytes / _MIN_BODY_BYTES_PER_S
        if not self._hold(num_bytes):
            self._note_refusal(OverloadedError("Too many bytes of requests wait here; try again.", retry_after_s=1.0))

    def _note_refusal(self, error: HeadraceError) -> None:
        """The client sent what we do not take: answer what came before it, then refuse and close."""
        self._refusal = error
        self.deadline_s = None
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def _keep_for_later(self, data: bytes) -> None:
        self._backlog.append(data)
        self._num_backlog_bytes += len(data)
        if self._num_backlog_bytes > self._limits.sizes.max_head_bytes:
            self._transport.pause_reading()

    def _feed_backlog(self) -> None:
        if not self._backlog:
            return
        data, self._backlog = b"".join(self._backlog), []
        if self._num_backlog_bytes > self._limits.sizes.max_head_bytes and not self._transport.is_closing():
            self._transport.resume_reading()
        self._num_backlog_bytes = 0
        self._feed(data)

    async def _wait_until_drained(self) -> None:
        self._drained = self._loop.create_future()
        await self._drained
        self._drained = None

    # the ends of the connection

    def drain(self) -> None:
        """The server goes down: close now if idle, else after the answer that is under way."""
        if self._writer is not None:
            self._writer.closes = True
        elif not self._ready and not self._is_receiving and not self._is_lingering:
            self._transport.close()

    def abort(self) -> None:
        """Close at once; what was not sent is lost."""
        self._transport.abort()

    def on_deadline(self) -> None:
        if self._is_lingering:
            self._transport.abort()
        elif self._is_write_paused or self._transport.is_closing():
            if self._unread is not None and self._unread.look():
                self._set_deadline(self._limits.write_timeout_s)  # slow, but it reads
            else:
                self._transport.abort()
        elif self._is_receiving:
            part = "body" if self._reader.is_in_body else "head"
            self._note_refusal(RequestTimeoutError(f"The request's {part} did not arrive in time."))
        else:
            self._transport.close()

    def _refuse(self, error: HeadraceError) -> None:
        request = Request(method="POST", target=b"/", headers=[], is_http10=False, keep_alive=False)
        answer_error(ResponseWriter(self._transport, request, close_after=True), error)
        self._server.count_refusal(error)
        self._linger()

    def _linger(self) -> None:
        """Close our side, and give the client time to read before a reset can overtake the answer."""
        self._is_lingering = True
        self._set_deadline(self._limits.linger_timeout_s)
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def _close(self) -> None:
        if self._transport.get_write_buffer_size():
            self._watch_reading()
        self._transport.close()

    def _watch_reading(self) -> None:
        """From now on the client must read something within each `write_timeout_s`."""
        if self._unread is None:
            self._unread = UnreadWatch(self._transport)
        self._unread.look()
        self._set_deadline(self._limits.write_timeout_s)

    def _set_deadline(self, timeout_s: float | None) -> None:
        self.deadline_s = None if timeout_s is None else self._loop.time() + timeout_s

    def _hold(self, num_bytes: int) -> bool:
        """Say how many bytes of body this connection holds; False when all connections together hold too many."""
        grown, self._num_held_bytes = num_bytes - self._num_held_bytes, num_bytes
        return self._server.hold(grown)

    def __repr__(self) -> str:
        state = "answering" if self._writer else "receiving" if self._is_receiving else "idle"
        return f"ClientConnection({self._peer}, {state}, num_waiting={len(self._ready)})"
