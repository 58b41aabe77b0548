"""What the pool gives back, and why it may have been the local tokenizer that answered. Pure."""

from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias

from headrace.errors import (
    HeadraceError,
    OverloadedError,
    PayloadTooLargeError,
    UnsupportedError,
    UpstreamConnectError,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamTimeoutError,
)
from headrace.tokenization.prompt import ChatPrompt, Encoded
from headrace.tokenization.remote.errors import EndpointFaultError
from headrace.tokenization.remote.transport import RemoteClosedError
from headrace.tokenization.tokenizer import TokenIds

FallbackReason: TypeAlias = Literal[
    "disabled",  # the pool is switched off
    "no_endpoint",  # discovery knows none that is ready
    "bad_address",  # discovery gave only what is no address
    "pool_full",  # max_tokenizers are in use at this moment
    "unhealthy",  # health checks or circuit breakers hold every endpoint back
    "unreachable",
    "timeout",
    "overloaded",  # 429 or 503 to the last attempt
    "endpoint_fault",  # wrong key, unknown model, its own failure
    "bad_answer",
    "unsupported",  # the engine's API cannot do what was asked for
    "too_large",
]


class RemoteUnavailableError(OverloadedError):
    """No endpoint could even be asked."""

    def __init__(self, message: str, *, reason: FallbackReason) -> None:
        super().__init__(message)
        self.reason = reason


class PoolEncoded(Encoded, frozen=True, eq=False):
    """The ids of a prompt, and whose they are: `endpoint` is set when `fallback_reason` is not, and the other way."""

    endpoint: str | None = None
    """URL of the endpoint that gave the ids; `source` is then `remote`."""
    fallback_reason: FallbackReason | None = None
    """Why the local tokenizer gave them; `source` is then its own."""


class LocalTokenizers(Protocol):
    """What the pool falls back to. `TokenizationService` is one."""

    async def encode(self, prompt: str | ChatPrompt, *, model: str, add_special_tokens: bool = True) -> Encoded: ...

    async def decode(
        self, token_ids: Sequence[int] | TokenIds, *, model: str, skip_special_tokens: bool = False
    ) -> str: ...


def reason_of(error: HeadraceError) -> FallbackReason | None:
    """Why the local tokenizer is asked after `error`; None: it is not, since the error is the answer."""
    match error:
        case RemoteClosedError():
            return None
        case RemoteUnavailableError():
            return error.reason
        case OverloadedError():
            return "overloaded"
        case UnsupportedError():
            return "unsupported"
        case PayloadTooLargeError():
            return "too_large"
        case UpstreamError():
            return _upstream_reason(error)
        case _:
            return None


def _upstream_reason(error: UpstreamError) -> FallbackReason:
    match error:
        case UpstreamConnectError():
            return "unreachable"
        case UpstreamTimeoutError():
            return "timeout"
        case EndpointFaultError():
            return "endpoint_fault"
        case UpstreamProtocolError():
            return "bad_answer"
        case _:
            return "endpoint_fault"
