"""What a worker answers its supervisor, beside metrics, health and state. The other side is `link.py`."""

from collections.abc import Awaitable, Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.gateway.admin.endpoint_routes import EndpointControl
from headrace.gateway.endpoints.wanted import Wanted

LIST_PATH = "/worker/endpoints"
WANTED_PATH = "/worker/wanted"
_JSON = "application/json"


def worker_routes(control: EndpointControl) -> list[Route]:
    """For the application on the worker's own socket."""
    return [Route(LIST_PATH, _lister(control)), Route(WANTED_PATH, _applier(control), methods=["PUT"])]


def _lister(control: EndpointControl) -> Callable[[Request], Awaitable[Response]]:
    async def answer(_: Request) -> Response:
        return Response(msgspec.json.encode(await control.list()), media_type=_JSON)

    return answer


def _applier(control: EndpointControl) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        await control.apply(msgspec.json.decode(await request.body(), type=Wanted))
        return Response(b"{}", media_type=_JSON)

    return answer
