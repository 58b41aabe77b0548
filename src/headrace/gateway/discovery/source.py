"""What every source of endpoints offers, and what it says of one endpoint. A new source is a new file here and one line
in `sources.py`."""

from collections.abc import AsyncIterator
from dataclasses import KW_ONLY, dataclass, field
from typing import Protocol

from headrace.gateway.kv_events.sources import EventSource
from headrace.gateway.upstream.address import Address


@dataclass(frozen=True, slots=True)
class EndpointSpec:
    """An endpoint that there should be, as its source describes it."""

    address: Address
    _: KW_ONLY
    weight: float = 1.0
    """Its power beside the others'."""
    api_key: str | None = field(default=None, repr=False)
    """Sent to it as `Authorization: Bearer`."""
    engine: str | None = None
    """Its kind, where the source knows; else the endpoint is asked."""
    models: tuple[str, ...] = ()
    """What it serves, for an endpoint without /v1/models; others are asked."""
    kv_events: EventSource | None = None
    """Where it publishes what it caches; else it is asked."""
    origin: str
    """Where the operator finds it: `flags`, the path of a file, `dns://NAME:PORT`, `admin API` and the like."""

    @property
    def url(self) -> str:
        """What names the endpoint everywhere."""
        return self.address.url


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStatistics:
    """How a source does."""

    num_endpoints: int
    """In the set as it gave it last."""
    trouble: str | None = None
    """Why that set may be old; None while all is well."""
    num_troubles: int = 0
    """How often something went wrong."""


class Source(Protocol):
    """Knows which endpoints there should be, and tells when that changes."""

    name: str
    """In logs, metrics and the admin API."""

    def watch(self) -> AsyncIterator[tuple[EndpointSpec, ...]]:
        """The complete set as it is now, each endpoint once; the first as soon as it is known, then one after every
        change. Never ends by itself: troubles are logged, tried again with growing pauses and kept visible in
        `statistics`, and meanwhile the last set stays good. Cancelling it closes everything. To be called once."""
        ...

    def statistics(self) -> SourceStatistics: ...
