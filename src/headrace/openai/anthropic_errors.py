"""Writes Anthropic's error object, whose types go by the HTTP status. It has no field that names a parameter: the
message does."""

from typing import Literal

import msgspec

from headrace.errors import HeadraceError

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class AnthropicErrorDetail(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    type: str
    message: str


class AnthropicErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """What a client of Anthropic's API expects of every answer that is not 2xx, and of an error event in a stream."""

    error: AnthropicErrorDetail
    type: Literal["error"] = "error"


def anthropic_error_body(error: HeadraceError) -> bytes:
    return encode_anthropic_error(message=error.message, status=error.status_hint)


def encode_anthropic_error(*, message: str, status: int) -> bytes:
    """The same JSON for an error that has no class of ours, such as an unknown route."""
    other = "api_error" if status >= 500 else "invalid_request_error"
    detail = AnthropicErrorDetail(type=_TYPES.get(status, other), message=message)
    return msgspec.json.encode(AnthropicErrorBody(error=detail))
