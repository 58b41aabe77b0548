"""What only the operator may do: /sleep, /wake_up, /is_sleeping, /reset_prefix_cache, /start_profile, /stop_profile and
/abort, with vLLM's bodies.

Each wants the admin key, which opens nothing else; without one in the settings they are closed to everybody.
"""

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.errors import (
    AuthenticationError,
    InvalidRequestError,
    PermissionDeniedError,
    SettingsError,
    UnsupportedError,
)
from headrace.openai import unbuilt
from headrace.openai.decode import RequestDecoder
from headrace.openai.long_strings import Body
from headrace.openai.schema.admin import (
    Aborted,
    AbortRequest,
    Asleep,
    CacheReset,
    IsSleeping,
    ProfileRequest,
    Woken,
)
from headrace.server.answers import json_response
from headrace.server.api_keys import ApiKeys
from headrace.server.intake import read_body
from headrace.server.serving import Serving

ADMIN_PATHS = frozenset(
    {"/sleep", "/wake_up", "/is_sleeping", "/reset_prefix_cache", "/start_profile", "/stop_profile", "/abort"}
)

_Handler: TypeAlias = Callable[[Request], Awaitable[Response]]


def admin_routes(serving: Serving) -> list[Route]:
    admin = Admin(serving)
    return [
        Route("/sleep", admin.guarded(admin.sleep), methods=["POST"]),
        Route("/wake_up", admin.guarded(admin.wake_up), methods=["POST"]),
        Route("/is_sleeping", admin.guarded(admin.is_sleeping), methods=["GET"]),
        Route("/reset_prefix_cache", admin.guarded(admin.reset_prefix_cache), methods=["POST"]),
        Route("/start_profile", admin.guarded(admin.start_profile), methods=["POST"]),
        Route("/stop_profile", admin.guarded(admin.stop_profile), methods=["POST"]),
        Route("/abort", admin.guarded(admin.abort), methods=["POST"]),
    ]


class Admin:
    """The handlers. They work while the server is full, which is when they are needed; the engine bounds each call.

    A client that leaves does not undo what it asked for.
    """

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._keys = ApiKeys(serving.settings.admin_api_key)
        self._abort_decoder = RequestDecoder(AbortRequest, unbuilt={})
        self._profile_decoder = RequestDecoder(ProfileRequest, unbuilt=unbuilt.PROFILE)

    def guarded(self, handler: _Handler) -> _Handler:
        """`handler` for those who carry the admin key."""

        async def check_and_handle(request: Request) -> Response:
            self._check_key(request)
            return await handler(request)

        return check_and_handle

    async def sleep(self, request: Request) -> Response:
        """Requests that run are aborted first, or with mode=keep go on after waking; those that come wait for that."""
        level = _whole_number(request, "level", default=1)
        mode = request.query_params.get("mode", "abort")
        if mode not in ("abort", "keep"):
            raise UnsupportedError(f"mode={mode!r} is not supported; give abort or keep", param="mode")
        if mode == "abort":
            await self._serving.engine.abort(self._serving.live.engine_ids())
        await self._serving.engine.sleep(level)
        return _answer(Asleep(level=level))

    async def wake_up(self, request: Request) -> Response:
        tags = request.query_params.getlist("tags") or None
        await self._serving.engine.wake_up(tags)
        is_asleep = await self._serving.engine.is_sleeping()
        return _answer(Woken(status="sleeping" if is_asleep else "awake", tags=tags))

    async def is_sleeping(self, request: Request) -> Response:  # noqa: ARG002 - Starlette's signature
        return _answer(IsSleeping(is_sleeping=await self._serving.engine.is_sleeping()))

    async def reset_prefix_cache(self, request: Request) -> Response:
        for name in ("reset_running_requests", "reset_external"):
            if request.query_params.get(name, "false").lower() not in ("false", "0"):
                raise UnsupportedError(f"{name} is not supported by this version; leave it out", param=name)
        return _answer(CacheReset(success=await self._serving.engine.reset_prefix_cache()))

    async def start_profile(self, request: Request) -> Response:
        if body := await self._body(request):
            self._profile_decoder.decode(body)
        try:
            await self._serving.engine.start_profile()
        except SettingsError as error:
            raise UnsupportedError(error.message, param=error.param) from error
        return Response()

    async def stop_profile(self, request: Request) -> Response:  # noqa: ARG002 - Starlette's signature
        await self._serving.engine.stop_profile()
        return Response()

    async def abort(self, request: Request) -> Response:
        body = await self._body(request)
        asked = self._abort_decoder.decode(body).request_ids if body else None
        live = self._serving.live
        ids = live.engine_ids() if asked is None else [one for name in asked for one in live.engine_ids(of=name)]
        await self._serving.engine.abort(ids)
        return _answer(Aborted(num_aborted=len(ids)))

    def _check_key(self, request: Request) -> None:
        if not self._keys:
            message = (
                f"{request.url.path} is closed; start the server with admin_api_key to open it to whoever has the key"
            )
            raise PermissionDeniedError(message)
        if not self._keys.are_carried(request.headers):
            raise AuthenticationError("the admin key is missing or wrong; send it as Authorization: Bearer KEY")

    async def _body(self, request: Request) -> Body:
        return await read_body(request.scope, request.receive, self._serving.settings)


def _whole_number(request: Request, name: str, *, default: int) -> int:
    given = request.query_params.get(name)
    if given is None:
        return default
    if not (given.isascii() and given.isdigit() and len(given) < 10):
        raise InvalidRequestError(f"{name} is {given!r:.40}, not a whole number", param=name)
    return int(given)


def _answer(value: msgspec.Struct) -> Response:
    return json_response(msgspec.json.encode(value))
