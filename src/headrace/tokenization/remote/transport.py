"""The seam between remote tokenizers and the network: a request out, an answer in. Knows nothing of tokens."""

from dataclasses import dataclass
from typing import Protocol

from headrace.errors import OverloadedError
from headrace.tokenization.remote.settings import RemoteTokenizerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteAnswer:
    """What an endpoint answered, whatever its status."""

    status: int
    body: bytes
    retry_after: str | None = None
    """The Retry-After header as it came."""


class RemoteClosedError(OverloadedError):
    """The transport or the pool was closed: this process is about to end, and no fallback helps."""


class RemoteTransport(Protocol):
    """Sends requests to endpoints. Serves one event loop; one for all tokenizers of a pool."""

    async def post(self, url: str, body: bytes) -> RemoteAnswer:
        """POST the JSON `body`. The deadline is the caller's; a cancelled call gives its connection up.

        Raises UpstreamConnectError and UpstreamProtocolError, and RemoteClosedError.
        """
        ...

    async def aclose(self) -> None:
        """End every connection; whoever waits gets RemoteClosedError. Idempotent."""
        ...


def over_http(settings: RemoteTokenizerSettings) -> RemoteTransport:
    """Sockets of its own. httpx loads only here: a gateway, which brings its own transport, must not wait for it."""
    from headrace.tokenization.remote.http import RemoteHttp

    return RemoteHttp(settings)
