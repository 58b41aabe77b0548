"""What an endpoint's answer that is not 200 means, as an exception of ours. Pure.

The message is the endpoint's own, cut to a line; what was sent to it is never repeated.
"""

import msgspec

from headrace.errors import (
    HeadraceError,
    InvalidRequestError,
    OverloadedError,
    PayloadTooLargeError,
    UnsupportedError,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamTimeoutError,
)
from headrace.tokenization.remote.transport import RemoteAnswer, RemoteClosedError

_MAX_MESSAGE_CHARS = 300
_TRANSIENT = frozenset({408, 500, 502, 504})


class EndpointFaultError(UpstreamError):
    """The endpoint answered, but cannot serve such requests: wrong key, unknown model, its own failure."""

    def __init__(self, message: str, *, code: str, is_transient: bool = False) -> None:
        super().__init__(message, code=code)
        self.is_transient = is_transient


class _Detail(msgspec.Struct):
    message: str | None = None
    param: str | None = None
    code: str | int | None = None


class _Body(msgspec.Struct):
    """OpenAI's error object, the flat form of older vLLM and of SGLang, or FastAPI's `detail`."""

    error: msgspec.Raw = msgspec.Raw()
    message: str | None = None
    param: str | None = None
    detail: msgspec.Raw = msgspec.Raw()


def error_of(answer: RemoteAnswer, *, url: str, is_chat: bool, retry_after_s: float | None) -> HeadraceError:
    """The exception for an answer whose status is not 200. `is_chat`: whether messages were sent."""
    message, param = _read(answer.body)
    said = f"{url} answered {answer.status}: {message}"
    match answer.status:
        case 400 | 422 if is_chat and _wants_a_prompt(message):
            return UnsupportedError(f"{url} does not tokenize chats; its version is too old", param="messages")
        case 400 | 422:
            return InvalidRequestError(message, param=param)
        case 413:
            return PayloadTooLargeError(said, param="prompt")
        case 429 | 503:
            return OverloadedError(said, retry_after_s=retry_after_s)
        case 401 | 403:
            return EndpointFaultError(f"{said}; check api_key", code="upstream_refused_key")
        case 404 | 405:
            return EndpointFaultError(f"{said}; it does not tokenize for this model", code="upstream_not_found")
        case status if status >= 400:
            return EndpointFaultError(said, code="upstream_failed", is_transient=status in _TRANSIENT)
        case status:
            return UpstreamProtocolError(f"{url} answered {status}, which no tokenizer does")


def is_transient(error: HeadraceError) -> bool:
    """Whether the same request may fare better at the same endpoint in a moment."""
    if isinstance(error, RemoteClosedError | UpstreamTimeoutError):
        return False
    if isinstance(error, EndpointFaultError):
        return error.is_transient
    return isinstance(error, UpstreamError | OverloadedError)


def _read(body: bytes) -> tuple[str, str | None]:
    """Message and parameter. `body` may be anything."""
    try:
        found = msgspec.json.decode(body, type=_Body)
        detail = _Detail(found.message, found.param)
        if bytes(found.error) not in {b"", b"null"}:
            detail = _error_field(bytes(found.error))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return "(no readable message)", None
    message = detail.message
    if message is None:
        message = bytes(found.detail).decode(errors="replace").strip('"')
    return _one_line(message or "(no message)"), detail.param


def _error_field(error: bytes) -> _Detail:
    """OpenAI's object, or a bare text."""
    if error.startswith(b'"'):
        return _Detail(msgspec.json.decode(error, type=str))
    return msgspec.json.decode(error, type=_Detail)


def _one_line(message: str) -> str:
    line = " ".join(message[: 2 * _MAX_MESSAGE_CHARS].split())
    return line if len(line) <= _MAX_MESSAGE_CHARS else f"{line[:_MAX_MESSAGE_CHARS]}..."


def _wants_a_prompt(message: str) -> bool:
    """Servers that know no `messages` miss the `prompt`."""
    return "prompt" in message and "required" in message.lower() and "messages" not in message
