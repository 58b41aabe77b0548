"""One answer to one request on a client's connection: its framing and its flow control. Knows not who produces it.

The framing follows what the client can read: Content-Length where the length is known, chunks for HTTP/1.1, and the end
of the connection for HTTP/1.0. An answer that breaks off never looks complete.
"""

import asyncio
import socket
import struct
from typing import Protocol

from headrace.gateway.http.head import lines_of, response_head
from headrace.gateway.http.head_facts import Headers
from headrace.gateway.http.message import Request
from headrace.gateway.http.plain_events import EventPipe

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Producer(Protocol):
    """Who writes the body and can be told to wait, because the client reads more slowly."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class ResponseWriter:
    """Writes one answer. `start`, any number of `send` and `flush`, then `finish` or `break_off`; or `answer` at once.

    Nothing blocks: a slow client makes the connection tell `producer` to pause.
    """

    def __init__(self, transport: asyncio.Transport, request: Request, *, close_after: bool) -> None:
        self._transport = transport
        self._is_http10 = request.is_http10
        self._is_head = request.method == "HEAD"
        self.closes = close_after or request.is_http10 or not request.keep_alive
        """Whether the connection ends with this answer."""
        self.is_started = False
        self.is_finished = False
        self.was_broken_off = False
        self.is_paused = False
        self.status = 0
        self.producer: Producer | None = None
        self._is_chunked = False
        self._parts: list[bytes] = []
        self._pipe: EventPipe | None = None

    def start(self, *, status: int, reason: bytes | None = None, lines: bytes, content_length: int | None) -> None:
        """Begin the answer; the head leaves with the first bytes of the body, or with `flush`. `lines` are its fields,
        but for those of its framing, as they are written."""
        self.is_started = True
        self.status = status
        has_no_body = status in {204, 304}
        self._is_chunked = content_length is None and not self._is_http10 and not has_no_body
        if content_length is None and self._is_http10:
            self.closes = True
        self._parts.append(
            response_head(
                status=status,
                reason=reason,
                lines=lines,
                content_length=None if has_no_body else content_length,
                is_chunked=self._is_chunked,
                close=self.closes,
            )
        )

    def send(self, data: bytes) -> None:
        """Add to the body; `flush` hands it to the socket."""
        if not data or self._is_head:
            return
        if self._is_chunked:
            self._parts += (b"%x\r\n" % len(data), data, b"\r\n")
        else:
            self._parts.append(data)

    def event_pipe(self) -> EventPipe | None:
        """Where whole chunks may go as they are, between two calls of the others; None where they may not."""
        if not self._is_chunked or self._is_head or self._parts:
            return None
        if self._pipe is None:
            self._pipe = EventPipe(self._transport)
        return self._pipe

    def flush(self) -> None:
        """Hand what was added to the transport, in one write."""
        if self._parts:
            parts, self._parts = self._parts, []
            if not self._transport.is_closing():
                self._transport.writelines(parts)

    def finish(self, *, trailers: Headers | None = None) -> None:
        """End the answer well. `trailers` go after a body in chunks; any other has no room for them."""
        if self._is_chunked and not self._is_head:
            self._parts.append(b"0\r\n%b\r\n" % lines_of(trailers or ()))
        self.is_finished = True
        self.flush()

    def break_off(self) -> None:
        """End the answer so that the client sees that it is incomplete: the connection closes in the middle, when its
        handler has ended."""
        self.flush()
        self.is_finished = True
        self.closes = True
        self.was_broken_off = True

    def cut_if_broken_off(self) -> None:
        """For the connection, after the handler: closing it earlier would cancel a handler that has yet to settle."""
        if not self.was_broken_off:
            return
        if self._is_http10 and not self._is_chunked:
            # Only a reset tells an HTTP/1.0 client, to whom the end of the connection is the end of the body.
            self._reset_on_close()
            self._transport.abort()
        else:
            self._transport.close()

    def answer(self, *, status: int, headers: Headers, body: bytes) -> None:
        """A whole answer in one write."""
        self.start(status=status, lines=lines_of(headers), content_length=len(body))
        self.send(body)
        self.finish()

    def pause(self) -> None:
        """The client reads too slowly."""
        self.is_paused = True
        if self.producer is not None:
            self.producer.pause()

    def resume(self) -> None:
        """The client has caught up."""
        self.is_paused = False
        if self.producer is not None:
            self.producer.resume()

    def _reset_on_close(self) -> None:
        sock = self._transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
