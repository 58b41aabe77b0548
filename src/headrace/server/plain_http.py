"""httptools' parser, made to pass over a wish to change the protocol (`Upgrade: h2c`, as Java's client sends it first).

A server may ignore the wish and answer the request as it stands. httptools cannot: it ends the request at its head, and
what follows, the body first of all, would be lost or taken for another request.
"""

import contextlib
from typing import Protocol

import httptools

_FRAMING = (b"content-length", b"transfer-encoding")


class RequestReader(Protocol):
    """What is told of a request, in order."""

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """Of the request whose head is being read or was read last, names in lower case."""
        ...

    def on_message_begin(self) -> None: ...

    def on_url(self, url: bytes) -> None: ...

    def on_header(self, name: bytes, value: bytes) -> None: ...

    def on_headers_complete(self) -> None: ...

    def on_body(self, body: bytes) -> None: ...

    def on_message_complete(self) -> None:
        """Also called, too early, when `is_body_to_come`."""
        ...


class PlainHttpParser:
    """One connection's parser, with the methods of `httptools.HttpRequestParser` that uvicorn calls."""

    def __init__(self, reader: RequestReader) -> None:
        self._reader = reader
        self._parser = _new_parser(reader)

    def __repr__(self) -> str:
        return "PlainHttpParser()"

    def feed_data(self, data: bytes) -> None:
        """Raises httptools.HttpParserError."""
        while True:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
                self._go_on()
            else:
                return

    def get_method(self) -> bytes:
        return self._parser.get_method()

    def get_http_version(self) -> str:
        return self._parser.get_http_version()

    def should_keep_alive(self) -> bool:
        return self._parser.should_keep_alive()

    def should_upgrade(self) -> bool:
        return False

    @property
    def is_body_to_come(self) -> bool:
        """Whether httptools has left the request's body unread, for it takes it for another protocol."""
        return self._parser.should_upgrade() and bool(self._framing())

    def _framing(self) -> list[bytes]:
        """What the head says of the body's end, as it says it."""
        return [b"%s: %s\r\n" % (name, value) for name, value in self._reader.headers if name in _FRAMING]

    def _go_on(self) -> None:
        """Read the body, if there is one, behind a head that says as much of it and nobody is told of."""
        framing = self._framing()
        self._parser = _new_parser(_BodyReader(self._reader) if framing else self._reader)
        if framing:
            self._parser.feed_data(b"POST / HTTP/1.1\r\n%s\r\n" % b"".join(framing))


def _new_parser(reader: RequestReader) -> httptools.HttpRequestParser:
    parser = httptools.HttpRequestParser(reader)
    with contextlib.suppress(AttributeError):  # httptools before 0.6.3
        parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn has it
    return parser


class _BodyReader:
    """Tells `reader` nothing of the first head, and everything from its body on."""

    def __init__(self, reader: RequestReader) -> None:
        self._reader = reader
        self._is_past_first = False

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return self._reader.headers

    def on_message_begin(self) -> None:
        if self._is_past_first:
            self._reader.on_message_begin()

    def on_url(self, url: bytes) -> None:
        if self._is_past_first:
            self._reader.on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_past_first:
            self._reader.on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._is_past_first:
            self._reader.on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._reader.on_body(body)

    def on_message_complete(self) -> None:
        self._is_past_first = True
        self._reader.on_message_complete()
