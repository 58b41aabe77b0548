"""Whole answers: JSON bodies, and errors in OpenAI's form or Anthropic's with their status and headers."""

import math

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from headrace.errors import AuthenticationError, HeadraceError
from headrace.openai.anthropic_errors import anthropic_error_body, encode_anthropic_error
from headrace.openai.errors import encode_error, error_body

_INVALID_REQUEST = "invalid_request_error"
_ANTHROPIC_PATH = "/v1/messages"


def json_response(body: bytes, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(body, status_code=status, headers=headers, media_type="application/json")


def error_response(error: HeadraceError, *, path: str) -> Response:
    """`error` with the status that it hints at, in the form that clients of the route at `path` read."""
    headers: dict[str, str] = {}
    if error.retry_after_s is not None:
        headers["retry-after"] = str(math.ceil(error.retry_after_s))
    if isinstance(error, AuthenticationError):
        headers["www-authenticate"] = "Bearer"
    body = anthropic_error_body(error) if is_anthropic(path) else error_body(error)
    return json_response(body, status=error.status_hint, headers=headers)


async def on_headrace_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HeadraceError)
    return error_response(error, path=request.url.path)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Starlette's own: a route or a method that does not exist."""
    assert isinstance(error, HTTPException)
    asked = f"{request.method} {request.url.path}"
    message, code = error.detail, None
    if error.status_code == 404:
        message, code = f"unknown route: {asked}", "unknown_url"
    elif error.status_code == 405:
        message, code = f"method not allowed: {asked}", "method_not_allowed"
    if is_anthropic(request.url.path):
        body = encode_anthropic_error(message=message, status=error.status_code)
    else:
        body = encode_error(message=message, error_type=_INVALID_REQUEST, code=code)
    return json_response(body, status=error.status_code, headers=dict(error.headers or {}))


async def on_defect(request: Request, error: Exception) -> Response:  # noqa: ARG001 - Starlette's signature
    """Anything that nobody foresaw. Starlette raises it again after this answer, so that it is logged."""
    return error_response(unexpected_error(), path=request.url.path)


def is_anthropic(path: str) -> bool:
    """Whether the route at `path` speaks Anthropic's form."""
    return path == _ANTHROPIC_PATH or path.startswith(f"{_ANTHROPIC_PATH}/")


def unexpected_error() -> HeadraceError:
    """Says nothing of the cause, which belongs in the log and not on the wire."""
    return HeadraceError("the server failed unexpectedly; its log has the cause")
