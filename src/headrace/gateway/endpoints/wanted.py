"""What the admin API wants of the endpoints, and what it tells of them: the forms in which both travel."""

from typing import Literal, TypeAlias

import msgspec

from headrace.gateway.discovery.entry import EndpointEntry

EndpointState: TypeAlias = Literal["ready", "down", "draining", "leaving"]


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """All that was said by the admin API and still holds. Applying it twice is applying it once."""

    added: tuple[EndpointEntry, ...] = ()
    drained: tuple[str, ...] = ()
    """URLs of endpoints of any origin."""


class ReportedView(msgspec.Struct, frozen=True, kw_only=True):
    """What the endpoint's own metrics say."""

    num_running: int
    num_waiting: int
    kv_cache_usage: float | None


class EndpointDetails(msgspec.Struct, frozen=True, kw_only=True):
    """One endpoint."""

    url: str
    origin: str
    state: EndpointState
    why: str
    """Why it takes no requests, or what failed last; empty when all is well."""
    is_healthy: bool
    breaker: str
    weight: float
    models: list[str]
    has_api_key: bool
    block_size: int
    has_kv_events: bool
    num_in_flight: int
    num_waiting_tokens: int
    num_done: int
    num_failed: int
    num_cancelled: int
    reported: ReportedView | None


class SourceView(msgspec.Struct, frozen=True, kw_only=True):
    """Where endpoints come from."""

    name: str
    num_endpoints: int
    trouble: str | None
    num_troubles: int


class EndpointList(msgspec.Struct, frozen=True, kw_only=True):
    """All of them."""

    object: str = "list"
    data: list[EndpointDetails]
    sources: list[SourceView]
