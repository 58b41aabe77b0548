"""Writes OpenAI's error object. Which HTTP status goes with it stands on the exception (`status_hint`)."""

import msgspec

from headrace.errors import HeadraceError


class ErrorDetail(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct, frozen=True):
    """What a client of OpenAI's API expects of every answer that is not 2xx, and of an error event in a stream."""

    error: ErrorDetail


def error_body(error: HeadraceError) -> bytes:
    """The JSON of `{"error": {"message", "type", "param", "code"}}` for `error`."""
    return encode_error(message=error.message, error_type=error.error_type, param=error.param, code=error.code)


def encode_error(*, message: str, error_type: str, param: str | None = None, code: str | None = None) -> bytes:
    """The same JSON for an error that has no class of ours, such as an unknown route."""
    detail = ErrorDetail(message=message, type=error_type, param=param, code=code)
    return msgspec.json.encode(ErrorBody(detail))
