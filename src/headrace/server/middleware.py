"""What surrounds every route: the request's id, its log line and the API key. Plain ASGI, so that streams pass
untouched."""

import logging
import re
import uuid
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.errors import AuthenticationError
from headrace.server.access_log import AccessLine
from headrace.server.admin import ADMIN_PATHS
from headrace.server.answers import error_response, is_anthropic
from headrace.server.api_keys import ApiKeys
from headrace.server.settings import ServerSettings

_LOG = logging.getLogger(__name__)

REQUEST_ID_HEADER = "x-request-id"
ANTHROPIC_REQUEST_ID_HEADER = "request-id"
"""Where Anthropic's clients look for it."""
OPEN_PATHS = frozenset({"/health", "/ping", "/metrics", "/version"})
"""Probes and scrapers carry no key."""

_NOT_IN_REQUEST_ID = re.compile(r"[^A-Za-z0-9._:@/+=-]")
_MAX_REQUEST_ID_LENGTH = 128


def surrounded(app: ASGIApp, settings: ServerSettings) -> ASGIApp:
    """`app` within what must see even the answer to a defect, which Starlette writes outside of its own middleware."""
    if settings.allowed_origins:
        app = CORSMiddleware(
            app,
            allow_origins=settings.allowed_origins,
            allow_methods=settings.allowed_methods,
            allow_headers=settings.allowed_headers,
            allow_credentials=settings.allow_credentials,
            expose_headers=(REQUEST_ID_HEADER, ANTHROPIC_REQUEST_ID_HEADER),
        )
    return RequestIdMiddleware(app, access_log=settings.access_log)


class RequestIdMiddleware:
    """Gives every answer an `x-request-id`: the client's own, cut and cleaned, or a new one. What is logged of the
    request has it too, and routes find it as `request_id` in the scope's state."""

    def __init__(self, app: ASGIApp, *, access_log: bool = True) -> None:
        self._app = app
        self._has_access_log = access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = clean_request_id(Headers(scope=scope).get(REQUEST_ID_HEADER, "")) or uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        answer = _Answer(send, request_id=request_id, headers=_headers_of(scope))
        line = AccessLine(scope, request_id=request_id)
        try:
            await self._app(scope, receive, answer.send)
        except Exception:
            # The outermost boundary: a defect that has been answered ends here, one that has not ends the connection.
            _LOG.exception("%s failed unexpectedly", scope["method"], extra={"request_id": request_id})
            if not answer.has_ended:
                raise
        finally:
            if self._has_access_log:
                line.write(status=answer.status)


class _Answer:
    """What goes out for one request."""

    def __init__(self, send: Send, *, request_id: str, headers: Sequence[str]) -> None:
        """`headers` are those that carry the id."""
        self._send = send
        self._request_id = request_id
        self._headers = headers
        self.status: int | None = None
        """None before the first byte."""
        self.has_ended = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            for name in self._headers:
                MutableHeaders(scope=message)[name] = self._request_id
        elif message["type"] == "http.response.body":
            self.has_ended = not message.get("more_body", False)
        await self._send(message)


def _headers_of(scope: Scope) -> Sequence[str]:
    if is_anthropic(scope["path"]):
        return (REQUEST_ID_HEADER, ANTHROPIC_REQUEST_ID_HEADER)
    return (REQUEST_ID_HEADER,)


def clean_request_id(given: str) -> str:
    """`given` without what could break a header or a log line, and of bounded length."""
    return _NOT_IN_REQUEST_ID.sub("", given)[:_MAX_REQUEST_ID_LENGTH]


class AuthenticationMiddleware:
    """Answers 401 unless the request carries one of the keys, or asks for one of `OPEN_PATHS`.

    The operator's routes look for a key of their own.
    """

    def __init__(self, app: ASGIApp, *, api_keys: Sequence[str]) -> None:
        self._app = app
        self._api_keys = ApiKeys(api_keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._may_pass(scope):
            await self._app(scope, receive, send)
            return
        error = AuthenticationError("the API key is missing or wrong; send it as Authorization: Bearer KEY")
        await error_response(error, path=scope["path"])(scope, receive, send)

    def _may_pass(self, scope: Scope) -> bool:
        path = scope["path"]
        return path in OPEN_PATHS or path in ADMIN_PATHS or self._api_keys.are_carried(Headers(scope=scope))
