"""The admin port: metrics, health, the dashboard page and its live events. An ASGI application, off the data path."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from importlib.resources import files

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from headrace.aio.tasks import TaskOwner
from headrace.errors import OverloadedError
from headrace.gateway.admin.broadcast import Broadcast
from headrace.metrics import CONTENT_TYPE
from headrace.openai.errors import error_body
from headrace.openai.sse import encode_event

_JSON = "application/json"
_PAGE_HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": (
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
}


def admin_app(
    *,
    expose_metrics: Callable[[], Awaitable[bytes]],
    health: Callable[[], tuple[int, bytes]],
    snapshots: Broadcast,
    more: Sequence[Route] = (),
) -> Starlette:
    """The application. `snapshots` carries the state as JSON; `more` are routes of others."""
    page = files("headrace.gateway").joinpath("dashboard/index.html").read_bytes()

    async def dashboard(_: Request) -> Response:
        return Response(page, media_type="text/html", headers=_PAGE_HEADERS)

    async def metrics(_: Request) -> Response:
        return Response(await expose_metrics(), headers={"content-type": CONTENT_TYPE})

    async def healthy(_: Request) -> Response:
        status, body = health()
        return Response(body, status_code=status, media_type=_JSON)

    async def live(_: Request) -> Response:
        return Response(b'{"status":"ok"}', media_type=_JSON)

    async def state(_: Request) -> Response:
        return Response(snapshots.latest or b"{}", media_type=_JSON, headers={"cache-control": "no-store"})

    async def events(_: Request) -> Response:
        try:
            values = snapshots.listen()
        except OverloadedError as error:
            return Response(error_body(error), status_code=error.status_hint, media_type=_JSON)
        return StreamingResponse(
            _as_events(values), media_type="text/event-stream", headers={"cache-control": "no-store"}
        )

    return Starlette(
        routes=[
            Route("/", dashboard),
            Route("/metrics", metrics),
            Route("/health", healthy),
            Route("/live", live),
            Route("/state", state),
            Route("/events", events),
            *more,
        ]
    )


async def _as_events(values: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for value in values:
        yield encode_event(value)


class AdminServer:
    """Serves an ASGI application in a loop that belongs to somebody else. Signals are left to whoever runs the loop."""

    def __init__(self, app: Starlette, *, owner: TaskOwner) -> None:
        config = uvicorn.Config(
            app,
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            limit_concurrency=64,
            timeout_graceful_shutdown=2,
        )
        self._server = _QuietServer(config)
        self._owner = owner
        self._task: asyncio.Task[None] | None = None

    def start(self, *, host: str, port: int) -> int:
        """Listen, and return the port. Raises OSError."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family)
        bound: int = listener.getsockname()[1]
        self._serve(listener)
        return bound

    def start_at(self, path: str) -> None:
        """Listen on a Unix socket, which whoever may enter its directory may use. Raises OSError."""
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.bind(path)
            listener.listen()
        except OSError:
            listener.close()
            raise
        self._serve(listener)

    def _serve(self, listener: socket.socket) -> None:
        self._task = self._owner.spawn(self._server.serve(sockets=[listener]), name="admin port")

    async def aclose(self) -> None:
        """Stop, and wait for the end. Idempotent."""
        if self._task is not None:
            self._server.should_exit = True
            await asyncio.wait([self._task])


class _QuietServer(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield
