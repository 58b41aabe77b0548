"""Length-prefixed msgpack frames over a socket between the front end and the engine core, both ends.

`AsyncChannel` is the front end's end: callbacks on the event loop, writes with backpressure. `BlockingChannel` is the
core's: a reader thread fills a bounded inbox, so that a message is seen between two steps. Messages mean nothing here.
"""

import asyncio
import contextlib
import queue
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import cast

import msgspec

from headrace.engine.wire.messages import FromCore, ToCore
from headrace.errors import EngineError, InvalidRequestError

MAX_FRAME_BYTES = 64 * 1024 * 1024
"""A longer frame is a defect, or not from us: 64 MiB is a prompt of 16 million tokens."""

_LENGTH = struct.Struct("<I")
_WRITE_HIGH_WATER_BYTES = 4 * 1024 * 1024
_RECEIVE_BYTES = 256 * 1024
_MAX_INBOX_MESSAGES = 4096


class ChannelClosedError(EngineError):
    """The other end is gone, or this one was closed."""


class FrameSplitter:
    """Cuts a byte stream into frames, however it was chunked. Holds one incomplete frame at most."""

    def __init__(self, *, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._buffer = bytearray()

    def feed(self, chunk: bytes) -> Iterator[bytearray]:
        """The frames that `chunk` completes. Raises EngineError for a frame longer than allowed."""
        self._buffer += chunk
        start = 0
        while (end := self._frame_end(start)) is not None:
            yield self._buffer[start + _LENGTH.size : end]
            start = end
        del self._buffer[:start]

    def _frame_end(self, start: int) -> int | None:
        if len(self._buffer) < start + _LENGTH.size:
            return None
        (num_bytes,) = _LENGTH.unpack_from(self._buffer, start)
        _check_frame_bytes(num_bytes, max_frame_bytes=self._max_frame_bytes)
        end: int = start + _LENGTH.size + num_bytes
        return end if len(self._buffer) >= end else None


def _check_frame_bytes(num_bytes: int, *, max_frame_bytes: int) -> None:
    if num_bytes > max_frame_bytes:
        raise EngineError(f"a frame of {num_bytes} bytes is longer than the {max_frame_bytes} that are allowed")


def encode_frame(message: msgspec.Struct, *, max_frame_bytes: int = MAX_FRAME_BYTES) -> bytes:
    """`message` as one frame, its length first.

    Raises EngineError when it is too long, InvalidRequestError for a value that cannot be sent: what is no plain value,
    a text that is not Unicode.
    """
    try:
        payload = msgspec.msgpack.encode(message)
    except (TypeError, OverflowError, UnicodeEncodeError) as error:
        raise InvalidRequestError(f"a value cannot be sent to the engine core: {error}") from error
    _check_frame_bytes(len(payload), max_frame_bytes=max_frame_bytes)
    return _LENGTH.pack(len(payload)) + payload


class AsyncChannel(asyncio.Protocol):
    """The front end's end. Callbacks run on the event loop, in the order of arrival; `on_closed` runs once.

    An exception that leaves `on_message` closes the channel and is given to `on_closed`.
    """

    def __init__(
        self, *, on_message: Callable[[FromCore], None], on_closed: Callable[[BaseException | None], None]
    ) -> None:
        self._on_message = on_message
        self._on_closed = on_closed
        self._frames = FrameSplitter()
        self._decoder: msgspec.msgpack.Decoder[FromCore] = msgspec.msgpack.Decoder(FromCore)
        self._transport: asyncio.Transport | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._writable = asyncio.Event()
        self._closed = asyncio.Event()
        self._failure: BaseException | None = None

    def __repr__(self) -> str:
        return f"<AsyncChannel {'open' if self.is_open else 'closed'}>"

    async def open(self, sock: socket.socket) -> None:
        """Take `sock` over; to be called once."""
        try:
            loop = self._loop = asyncio.get_running_loop()
            if sock.family == socket.AF_UNIX:
                await loop.create_unix_connection(lambda: self, sock=sock)
            else:
                await loop.create_connection(lambda: self, sock=sock)
        except BaseException:
            sock.close()
            raise

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def post(self, message: ToCore) -> None:
        """Send without waiting: for the few messages that must not wait (aborts, shutdown). Dropped when closed."""
        if self._transport is not None and self.is_open:
            self._transport.write(encode_frame(message))

    async def send(self, message: ToCore) -> None:
        """Send when the core has taken most of what was sent before. A cancelled send sends nothing.

        Raises ChannelClosedError when the channel is closed, or closes while this waits.
        """
        await self._writable.wait()
        if not self.is_open:
            raise ChannelClosedError("the channel to the engine core is closed")
        self.post(message)

    async def aclose(self) -> None:
        """Close, dropping what has not been written. Idempotent.

        After the loop was closed, which ends the transport unheard, nothing is left to wait for.
        """
        if self._transport is not None and self._loop is not None and not self._loop.is_closed():
            self._transport.abort()
            await self._closed.wait()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_WRITE_HIGH_WATER_BYTES)
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._frames.feed(data):
                self._on_message(self._decoder.decode(frame))
        except Exception as error:  # noqa: BLE001 - the loop would only log it; here the owner learns of it
            self._failure = error
            if self._transport is not None:
                self._transport.abort()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._writable.set()
        self._closed.set()
        self._on_closed(self._failure or exc)


class BlockingChannel:
    """The core's end. One thread receives into the inbox; `receive`, `send` and `close` belong to the core's thread."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._frames = FrameSplitter()
        self._decoder: msgspec.msgpack.Decoder[ToCore] = msgspec.msgpack.Decoder(ToCore)
        self._inbox: queue.Queue[ToCore | None] = queue.Queue(_MAX_INBOX_MESSAGES)
        """None is the end: nothing follows it."""
        self._failure: Exception | None = None
        """Why nothing more can be received, unless the other end is simply gone."""
        self.peer_is_gone = threading.Event()
        """Set as soon as the other end closes, even while the core's thread is busy."""
        self._reader = threading.Thread(target=self._read, name="headrace-core-reader", daemon=True)
        self._reader.start()

    def __repr__(self) -> str:
        return f"<BlockingChannel {self._inbox.qsize()} messages wait>"

    def receive(self, *, timeout_s: float) -> list[ToCore]:
        """All messages that have arrived; when there is none, waits up to `timeout_s` for the first.

        Raises ChannelClosedError when the other end is gone and everything it sent has been received, EngineError when
        what it sent next is no message.
        """
        messages: list[ToCore] = []
        try:
            while True:
                message = self._inbox.get(block=not messages and timeout_s > 0, timeout=timeout_s)
                if message is None:
                    self._inbox.put(None)
                    break
                messages.append(message)
        except queue.Empty:
            return messages
        if not messages and self._failure is not None:
            raise EngineError(f"the front end sent what is no message: {self._failure}") from self._failure
        if not messages:
            raise ChannelClosedError("the front end of the engine is gone")
        return messages

    def send(self, message: FromCore) -> None:
        """Send, waiting as long as the front end lives but does not read. Raises ChannelClosedError when it is gone."""
        try:
            self._sock.sendall(encode_frame(message))
        except OSError as error:
            raise ChannelClosedError("the front end of the engine is gone") from error

    def hang_up(self) -> None:
        """End the connection, as if the other end had closed it. May be called by any thread."""
        with contextlib.suppress(OSError):  # not connected any more, or closed already
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close and end the reader thread. Idempotent."""
        self.hang_up()
        while self._reader.is_alive():
            self._discard_inbox()  # the reader may wait for room in it
            self._reader.join(timeout=0.05)
        self._sock.close()

    def _read(self) -> None:
        try:
            with contextlib.suppress(OSError):  # a reset is an end like any other
                while chunk := self._sock.recv(_RECEIVE_BYTES):
                    for frame in self._frames.feed(chunk):
                        self._inbox.put(self._decoder.decode(frame))
        except (msgspec.DecodeError, EngineError) as error:
            self._failure = error
        finally:
            self.peer_is_gone.set()
            self._inbox.put(None)

    def _discard_inbox(self) -> None:
        while not self._inbox.empty():
            self._inbox.get_nowait()
