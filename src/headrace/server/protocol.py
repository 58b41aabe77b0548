"""uvicorn's HTTP/1.1 connection with the bounds it lacks: a request's head may take only so many bytes and seconds."""

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headrace.openai.errors import encode_error

CUT_CONNECTION = "headrace.cut_connection"
"""The ASGI extension that closes the connection at once, throwing away what the client has not read."""

_MAX_HEAD_BYTES = 64 << 10
_HEAD_TIMEOUT_S = 30.0
_TOO_LARGE = encode_error(
    message=f"the request's head is larger than {_MAX_HEAD_BYTES} bytes; send shorter headers",
    error_type="invalid_request_error",
    code="header_too_large",
)


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection. `on_lost` is called when it has ended, its last bytes sent; one that is made when the server
    `is_stopping` already is closed, unanswered, for its client to go elsewhere.

    The bound on bytes is kept to one read of the socket: a head that arrives whole in one piece passes.
    """

    def __init__(self, *args: Any, on_lost: Callable[[], None], is_stopping: Callable[[], bool], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._on_lost = on_lost
        self._is_stopping = is_stopping
        self._num_head_bytes: int | None = 0  # None between a head and the next request
        self._head_deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        if self._is_stopping():
            transport.close()
        else:
            self._begin_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head()
        super().connection_lost(exc)
        self._on_lost()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._num_head_bytes is None or self.transport.is_closing():
            return
        self._num_head_bytes += len(data)
        if self._num_head_bytes > _MAX_HEAD_BYTES:
            self._refuse_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {CUT_CONNECTION: {"cut": self.transport.abort}}
        self._begin_head()

    def on_headers_complete(self) -> None:
        self._end_head()
        super().on_headers_complete()

    def _begin_head(self) -> None:
        self._end_head()
        self._num_head_bytes = 0
        self._head_deadline = self.loop.call_later(_HEAD_TIMEOUT_S, self.transport.close)

    def _end_head(self) -> None:
        self._num_head_bytes = None
        if self._head_deadline is not None:
            self._head_deadline.cancel()
            self._head_deadline = None

    def _refuse_head(self) -> None:
        self.transport.write(
            b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\nconnection: close\r\n"
            b"content-length: %d\r\n\r\n%s" % (len(_TOO_LARGE), _TOO_LARGE)
        )
        self.transport.close()
