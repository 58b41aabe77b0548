"""What surrounds every route: the request's id and the API key. Plain ASGI, so that streams pass untouched."""

import hashlib
import hmac
import re
import uuid
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.errors import AuthenticationError
from headrace.server.answers import error_response

REQUEST_ID_HEADER = "x-request-id"
OPEN_PATHS = frozenset({"/health", "/metrics", "/version"})
"""Probes and scrapers carry no key."""

_NOT_IN_REQUEST_ID = re.compile(r"[^A-Za-z0-9._:@/+=-]")
_MAX_REQUEST_ID_LENGTH = 128


class RequestIdMiddleware:
    """Gives every answer an `x-request-id`: the client's own, cut and cleaned, or a new one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = clean_request_id(Headers(scope=scope).get(REQUEST_ID_HEADER, "")) or uuid.uuid4().hex

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[REQUEST_ID_HEADER] = request_id
            await send(message)

        await self._app(scope, receive, send_with_id)


def clean_request_id(given: str) -> str:
    """`given` without what could break a header or a log line, and of bounded length."""
    return _NOT_IN_REQUEST_ID.sub("", given)[:_MAX_REQUEST_ID_LENGTH]


class AuthenticationMiddleware:
    """Answers 401 unless the request carries one of the keys, or asks for one of `OPEN_PATHS`."""

    def __init__(self, app: ASGIApp, *, api_keys: Sequence[str]) -> None:
        self._app = app
        self._digests = [_digest(key) for key in api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or self._is_known(Headers(scope=scope)):
            await self._app(scope, receive, send)
            return
        error = AuthenticationError("the API key is missing or wrong; send it as Authorization: Bearer KEY")
        await error_response(error)(scope, receive, send)

    def _is_known(self, headers: Headers) -> bool:
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return False
        # Digests of equal length, each compared whole: the time taken tells neither a key's length nor its beginning.
        digest = _digest(key.strip())
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return any(matches)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
