"""Passes a request that came through Ray Serve's proxy on to the gateway beside it, and its answer back as it comes."""

from collections.abc import AsyncIterator

import httpx
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

# Of one connection, and so not passed on (RFC 9110, 7.6.1).
_HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"}
)
_CONNECT_TIMEOUT_S = 2.0


class Relay:
    """To one gateway, whose own deadlines hold. A client that leaves cancels the request there."""

    def __init__(self, url: str) -> None:
        timeout = httpx.Timeout(None, connect=_CONNECT_TIMEOUT_S)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=256, keepalive_expiry=30.0)
        self._client = httpx.AsyncClient(base_url=url, timeout=timeout, limits=limits, trust_env=False)

    async def answer(self, request: Request) -> Response:
        """The gateway's answer."""
        outgoing = self._client.build_request(
            request.method,
            httpx.URL(path=request.url.path, query=request.url.query.encode()),
            headers=_passed_on(request.headers.raw),
            content=await request.body(),
        )
        try:
            answer = await self._client.send(outgoing, stream=True)
        except httpx.HTTPError as error:
            message = f"The gateway cannot be reached: {str(error) or type(error).__name__}"
            return JSONResponse({"error": {"message": message, "type": "upstream_error", "code": None}}, 502)
        response = StreamingResponse(
            _pieces(answer), status_code=answer.status_code, background=BackgroundTask(answer.aclose)
        )
        response.raw_headers = _passed_on(answer.headers.raw)
        return response

    async def aclose(self) -> None:
        """Close connections. Idempotent."""
        await self._client.aclose()


async def _pieces(answer: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for piece in answer.aiter_raw():
            yield piece
    finally:
        await answer.aclose()


def _passed_on(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in headers if name.decode("latin-1").lower() not in _HOP_BY_HOP]
