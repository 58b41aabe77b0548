"""Reads a request's body, bounded in bytes and in time, and checks that it says it is JSON. Decodes nothing but the
long strings of long bodies, each piece as it comes: a whole one would hold the event loop."""

import asyncio
import uuid

import msgspec
from starlette.datastructures import Headers
from starlette.types import Receive, Scope

from headrace.errors import InvalidRequestError, PayloadTooLargeError, RequestTimeoutError
from headrace.openai.decode import no_json
from headrace.openai.long_strings import Body, LongStringReader
from headrace.server.settings import ServerSettings


class ClientGoneError(Exception):
    """The client closed its connection: there is nobody to answer. Never leaves the server."""


_LONG_BODY_BYTES = 256 << 10
"""A shorter one is decoded in one go, in less than a millisecond."""


async def read_body(scope: Scope, receive: Receive, settings: ServerSettings) -> Body:
    """The whole body. Raises PayloadTooLargeError before it is in memory, RequestTimeoutError when it is late,
    InvalidRequestError when a long string in it is none, and ClientGoneError when it breaks off."""
    headers = Headers(scope=scope)
    _check_content_type(headers.get("content-type"))
    _check_content_encoding(headers.get("content-encoding", "identity"))
    _check_size(int(headers.get("content-length", 0)), settings.max_body_bytes)
    try:
        async with asyncio.timeout(settings.body_timeout_s):
            return await _collect(receive, settings.max_body_bytes)
    except TimeoutError as error:
        raise RequestTimeoutError(f"the request body did not arrive within {settings.body_timeout_s:g} s") from error


async def _collect(receive: Receive, max_body_bytes: int) -> Body:
    pieces: list[bytes] = []
    num_bytes = 0
    reader: LongStringReader | None = None
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError("the connection ended within the body")
        pieces.append(message.get("body", b""))
        num_bytes += len(pieces[-1])
        _check_size(num_bytes, max_body_bytes)
        if num_bytes > _LONG_BODY_BYTES:
            reader = reader or LongStringReader(marker=f"a long string {uuid.uuid4().hex}")
            _feed(reader, pieces)
        if not message.get("more_body", False):
            return b"".join(pieces) if reader is None else reader.finish()


def _feed(reader: LongStringReader, pieces: list[bytes]) -> None:
    """And clear `pieces`."""
    try:
        for piece in pieces:
            reader.feed(piece)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise no_json(error, b"".join(pieces)) from error
    pieces.clear()


def _check_content_type(content_type: str | None) -> None:
    """Absent is taken for JSON; anything else that is not JSON is most often a client's mistake worth naming."""
    media_type = (content_type or "application/json").partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise InvalidRequestError(
            f"the body's Content-Type is {media_type!r}; send JSON with Content-Type: application/json",
            code="unsupported_media_type",
        )


def _check_content_encoding(encoding: str) -> None:
    if encoding.strip().lower() != "identity":
        raise InvalidRequestError(
            f"the body's Content-Encoding is {encoding!r:.80}, which is not supported; send it uncompressed",
            code="unsupported_media_type",
        )


def _check_size(num_bytes: int, max_body_bytes: int) -> None:
    if num_bytes > max_body_bytes:
        raise PayloadTooLargeError(f"the request body is larger than {max_body_bytes} bytes; send less text at once")
