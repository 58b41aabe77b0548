"""The admin API: endpoints listed, added, drained and removed while the gateway runs. Part of the admin port.

Every change is idempotent. Nothing changes without the operator's key; where no key was set, changes are off.
"""

import asyncio
import hashlib
import hmac
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.errors import (
    AuthenticationError,
    HeadraceError,
    InvalidRequestError,
    PayloadTooLargeError,
    PermissionDeniedError,
    RequestError,
    SettingsError,
)
from headrace.gateway.discovery.entry import EndpointEntry, parse_entry
from headrace.gateway.discovery.follow import ADMIN_API
from headrace.gateway.endpoints.wanted import EndpointDetails, EndpointList, Wanted
from headrace.gateway.unreadable import UNREADABLE
from headrace.gateway.upstream.address import parse_address
from headrace.openai.errors import error_body

_LOG = logging.getLogger(__name__)
_JSON = "application/json"
_MAX_BODY_BYTES = 64 * 1024
_MAX_WANTED = 1024
_BODY_TIMEOUT_S = 10.0
_WHERE = "the body"

_Handler = Callable[[Request], Awaitable[Response]]


class NoSuchEndpointError(RequestError):
    """The admin API was asked about an endpoint that there is not."""

    status_hint = 404
    error_type = "not_found_error"
    default_code = "endpoint_not_found"


class EndpointConflictError(RequestError):
    """The endpoint belongs to another source than the admin API."""

    status_hint = 409
    default_code = "endpoint_of_other_origin"


class EndpointControl(Protocol):
    """The gateway, or all workers of one, as far as the admin API is concerned."""

    async def list(self) -> EndpointList: ...

    async def apply(self, wanted: Wanted) -> None:
        """Have it so, from now on."""
        ...


class _Named(msgspec.Struct, forbid_unknown_fields=True):
    url: str


class AdminApi:
    """Holds what was wanted so far. One change at a time."""

    def __init__(self, control: EndpointControl, *, key: str | None) -> None:
        self.wanted = Wanted()
        self._control = control
        self._digest = _digest_of(key) if key is not None else None
        self._turn = asyncio.Lock()

    def routes(self) -> list[Route]:
        """For the admin port's application."""
        return [
            Route("/admin/endpoints", self._guard(self._list, changes=False), methods=["GET"]),
            Route("/admin/endpoints", self._guard(self._add), methods=["POST"]),
            Route("/admin/endpoints", self._guard(self._remove), methods=["DELETE"]),
            Route("/admin/endpoints/drain", self._guard(self._drain), methods=["POST"]),
            Route("/admin/endpoints/undrain", self._guard(self._undrain), methods=["POST"]),
        ]

    async def _list(self, request: Request) -> Response:
        del request
        return _answer(await self._control.list())

    async def _add(self, request: Request) -> Response:
        entry = _read_entry(await _read_body(request))
        url = _url_of(entry.url)
        others = tuple(one for one in self.wanted.added if _url_of(one.url) != url)
        if len(others) >= _MAX_WANTED:
            raise InvalidRequestError(f"{len(others)} endpoints were added already; {_MAX_WANTED} is the limit")
        is_new = await self._find(url) is None
        await self._change(msgspec.structs.replace(self.wanted, added=(*others, entry)))
        _LOG.info("admin API: endpoint %s is added", url)
        return _answer(await self._find(url), status=201 if is_new else 200)

    async def _remove(self, request: Request) -> Response:
        url = _url_of(request.query_params.get("url") or _read_named(await _read_body(request)).url)
        added = tuple(one for one in self.wanted.added if _url_of(one.url) != url)
        if len(added) == len(self.wanted.added):
            there = await self._get(url)
            if there.origin != ADMIN_API:
                raise EndpointConflictError(
                    f"The endpoint {url} comes from {there.origin}; remove it there, or drain it here.", param="url"
                )
        drained = tuple(one for one in self.wanted.drained if one != url)
        await self._change(Wanted(added=added, drained=drained))
        _LOG.info("admin API: endpoint %s is removed", url)
        return _answer(await self._find(url) or {"url": url, "state": "removed"})

    async def _drain(self, request: Request) -> Response:
        there = await self._get(_url_of(_read_named(await _read_body(request)).url))
        others = tuple(one for one in self.wanted.drained if one != there.url)
        if len(others) >= _MAX_WANTED:
            others = await self._without_gone(others)
        if len(others) >= _MAX_WANTED:
            raise InvalidRequestError(f"{len(others)} endpoints are drained already; {_MAX_WANTED} is the limit")
        await self._change(msgspec.structs.replace(self.wanted, drained=(*others, there.url)))
        _LOG.info("admin API: endpoint %s is drained", there.url)
        return _answer(await self._find(there.url))

    async def _undrain(self, request: Request) -> Response:
        url = _url_of(_read_named(await _read_body(request)).url)
        if url not in self.wanted.drained:
            await self._get(url)
        drained = tuple(one for one in self.wanted.drained if one != url)
        await self._change(msgspec.structs.replace(self.wanted, drained=drained))
        _LOG.info("admin API: endpoint %s takes requests again", url)
        return _answer(await self._find(url) or {"url": url, "state": "removed"})

    async def _change(self, wanted: Wanted) -> None:
        self.wanted = wanted
        await self._control.apply(wanted)

    async def _without_gone(self, urls: Sequence[str]) -> tuple[str, ...]:
        """Without those that no source names any more, as happens wherever endpoints are drained before they go."""
        there = {one.url for one in (await self._control.list()).data}
        return tuple(url for url in urls if not there or url in there)

    async def _find(self, url: str) -> EndpointDetails | None:
        return next((one for one in (await self._control.list()).data if one.url == url), None)

    async def _get(self, url: str) -> EndpointDetails:
        found = await self._find(url)
        if found is None:
            raise NoSuchEndpointError(f"There is no endpoint {url}; GET /admin/endpoints lists them.", param="url")
        return found

    def _guard(self, handler: _Handler, *, changes: bool = True) -> _Handler:
        """`handler`, for whoever has the key; what it raises becomes an answer."""

        async def guarded(request: Request) -> Response:
            try:
                self._check_key(request, changes=changes)
                if not changes:
                    return await handler(request)
                async with self._turn:
                    return await handler(request)
            except HeadraceError as error:
                headers = {"www-authenticate": "Bearer"} if error.status_hint == 401 else None
                return Response(error_body(error), status_code=error.status_hint, media_type=_JSON, headers=headers)

        return guarded

    def _check_key(self, request: Request, *, changes: bool) -> None:
        if self._digest is None:
            if changes:
                raise PermissionDeniedError(
                    "The admin API changes nothing while it has no key. Start the gateway with admin_api_key "
                    "(HEADRACE_GATEWAY_ADMIN_API_KEY) and send it as Authorization: Bearer.",
                    code="admin_api_off",
                )
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        is_key = hmac.compare_digest(_digest_of(given.strip()), self._digest)
        if scheme.lower() != "bearer" or not is_key:
            raise AuthenticationError("The admin API takes its own key as Authorization: Bearer; this is not it.")

    def __repr__(self) -> str:
        return f"AdminApi(num_added={len(self.wanted.added)}, num_drained={len(self.wanted.drained)})"


def _digest_of(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


async def _read_body(request: Request) -> bytes:
    parts: list[bytes] = []
    try:
        async with asyncio.timeout(_BODY_TIMEOUT_S):
            async for part in request.stream():
                parts.append(part)
                if sum(map(len, parts)) > _MAX_BODY_BYTES:
                    raise PayloadTooLargeError(f"The body has more than {_MAX_BODY_BYTES} bytes.")
    except (TimeoutError, ClientDisconnect) as error:
        raise InvalidRequestError("The body did not arrive.") from error
    return b"".join(parts)


def _read_entry(body: bytes) -> EndpointEntry:
    try:
        return parse_entry(msgspec.json.decode(body, type=dict[str, object]), where=_WHERE)
    except UNREADABLE as error:
        raise InvalidRequestError(f"The body is not a JSON object with `url`: {error}") from error
    except SettingsError as error:
        raise InvalidRequestError(error.message, param="url") from error


def _read_named(body: bytes) -> _Named:
    try:
        return msgspec.json.decode(body, type=_Named)
    except UNREADABLE as error:
        raise InvalidRequestError(f'The body is not {{"url": ...}}: {error}', param="url") from error


def _url_of(url: str) -> str:
    """As the endpoint is named everywhere. Raises InvalidRequestError."""
    try:
        return parse_address(url, param="url").url
    except SettingsError as error:
        raise InvalidRequestError(error.message, param="url") from error


def _answer(content: object, *, status: int = 200) -> Response:
    return Response(
        msgspec.json.encode(content), status_code=status, media_type=_JSON, headers={"cache-control": "no-store"}
    )
