"""Every exception that leaves Headrace.

Each class says whose fault it is and which HTTP status fits (`status_hint`), and carries what OpenAI's error object
needs (`error_type`, `code`, `param`). Foreign exceptions are translated once, at the seam where they enter, with
``raise ... from``. This module knows nothing of HTTP bodies; `headrace.openai.errors` writes those.

    HeadraceError
    ├── SettingsError                 the operator: a setting is unknown or unreadable
    ├── RequestError                  the client
    │   ├── InvalidRequestError       400
    │   │   ├── ContextLengthError    400, code context_length_exceeded
    │   │   └── UnsupportedError      400, a known field that is not built
    │   ├── AuthenticationError       401
    │   ├── PermissionDeniedError     403
    │   ├── ModelNotFoundError        404
    │   ├── RequestTimeoutError       408
    │   ├── PayloadTooLargeError      413
    │   └── RateLimitError            429
    ├── OverloadedError               503, nobody's fault: try again later
    ├── TokenizationError             500
    ├── EngineError                   500
    │   ├── EngineDeadError           503
    │   ├── EngineStalledError        503
    │   └── EngineGenerateError       500
    └── UpstreamError                 502
        ├── UpstreamConnectError      502
        ├── UpstreamTimeoutError      504
        └── UpstreamProtocolError     502
"""

from typing import ClassVar


class HeadraceError(Exception):
    """Base of all. `message` is what happened, with the value, and what to do."""

    status_hint: ClassVar[int] = 500
    error_type: ClassVar[str] = "internal_server_error"
    default_code: ClassVar[str | None] = None

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code if code is not None else self.default_code
        self.retry_after_s = retry_after_s


class SettingsError(HeadraceError):
    """A setting is unknown or its value cannot be read. `param` names it."""


class RequestError(HeadraceError):
    """The client's request cannot be served as it is."""

    status_hint = 400
    error_type = "invalid_request_error"


class InvalidRequestError(RequestError):
    """A field has a wrong type, a wrong value or is missing. `param` names it."""


class ContextLengthError(InvalidRequestError):
    """The prompt, or the prompt and the tokens asked for, do not fit the model's context."""

    default_code = "context_length_exceeded"


class UnsupportedError(InvalidRequestError):
    """A field of the API that this version does not build; refused by name rather than ignored."""

    default_code = "unsupported_parameter"


class AuthenticationError(RequestError):
    status_hint = 401
    error_type = "authentication_error"
    default_code = "invalid_api_key"


class PermissionDeniedError(RequestError):
    """The server offers it, but not to this client, or not as it was started."""

    status_hint = 403
    error_type = "permission_error"
    default_code = "permission_denied"


class ModelNotFoundError(RequestError):
    status_hint = 404
    error_type = "not_found_error"
    default_code = "model_not_found"


class RequestTimeoutError(RequestError):
    """The request did not arrive in time."""

    status_hint = 408
    default_code = "request_timeout"


class PayloadTooLargeError(RequestError):
    status_hint = 413
    default_code = "payload_too_large"


class RateLimitError(RequestError):
    status_hint = 429
    error_type = "rate_limit_error"
    default_code = "rate_limit_exceeded"


class OverloadedError(HeadraceError):
    """A bounded queue is full or nothing can serve the request now."""

    status_hint = 503
    error_type = "overloaded_error"
    default_code = "overloaded"


class TokenizationError(HeadraceError):
    """A tokenizer could not be loaded, or failed on a text for a reason that is not the text's."""

    error_type = "tokenization_error"


class EngineError(HeadraceError):
    """The engine failed."""

    error_type = "engine_error"


class EngineDeadError(EngineError):
    """The engine's core is gone or hung; `__cause__` holds the real reason. Nothing will be answered any more."""

    status_hint = 503
    default_code = "engine_dead"


class EngineStalledError(EngineError):
    """The engine's core has finished no step for too long while work waits. It may yet go on; requests stay open."""

    status_hint = 503
    default_code = "engine_stalled"


class EngineGenerateError(EngineError):
    """One request failed inside the engine; others go on."""


class UpstreamError(HeadraceError):
    """An endpoint behind the gateway failed."""

    status_hint = 502
    error_type = "upstream_error"


class UpstreamConnectError(UpstreamError):
    """No connection to the endpoint."""

    default_code = "upstream_unreachable"


class UpstreamTimeoutError(UpstreamError):
    """The endpoint did not answer in time."""

    status_hint = 504
    default_code = "upstream_timeout"


class UpstreamProtocolError(UpstreamError):
    """The endpoint closed early or sent what is not HTTP."""

    default_code = "upstream_protocol_error"
