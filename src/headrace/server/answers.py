"""Whole answers: JSON bodies, and errors in OpenAI's form with their status and headers."""

import math

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from headrace.errors import AuthenticationError, HeadraceError
from headrace.openai.errors import encode_error, error_body

_INVALID_REQUEST = "invalid_request_error"


def json_response(body: bytes, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(body, status_code=status, headers=headers, media_type="application/json")


def error_response(error: HeadraceError) -> Response:
    """`error` with the status that it hints at."""
    headers: dict[str, str] = {}
    if error.retry_after_s is not None:
        headers["retry-after"] = str(math.ceil(error.retry_after_s))
    if isinstance(error, AuthenticationError):
        headers["www-authenticate"] = "Bearer"
    return json_response(error_body(error), status=error.status_hint, headers=headers)


async def on_headrace_error(request: Request, error: Exception) -> Response:  # noqa: ARG001 - Starlette's signature
    assert isinstance(error, HeadraceError)
    return error_response(error)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Starlette's own: a route or a method that does not exist."""
    assert isinstance(error, HTTPException)
    asked = f"{request.method} {request.url.path}"
    if error.status_code == 404:
        body = encode_error(message=f"unknown route: {asked}", error_type=_INVALID_REQUEST, code="unknown_url")
    elif error.status_code == 405:
        body = encode_error(
            message=f"method not allowed: {asked}", error_type=_INVALID_REQUEST, code="method_not_allowed"
        )
    else:
        body = encode_error(message=error.detail, error_type=_INVALID_REQUEST)
    return json_response(body, status=error.status_code, headers=dict(error.headers or {}))


async def on_defect(request: Request, error: Exception) -> Response:  # noqa: ARG001 - Starlette's signature
    """Anything that nobody foresaw. Starlette raises it again after this answer, so that it is logged."""
    return json_response(unexpected_error_body(), status=500)


def unexpected_error_body() -> bytes:
    """Says nothing of the cause, which belongs in the log and not on the wire."""
    return encode_error(
        message="the server failed unexpectedly; its log has the cause", error_type="internal_server_error"
    )
