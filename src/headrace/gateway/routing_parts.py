"""The parts of routing, put together: the prefix index, the policy, what informs the index and what is written down."""

import secrets
from dataclasses import dataclass
from pathlib import Path

from headrace.gateway.choose import Chooser
from headrace.gateway.endpoints.endpoint import Endpoint
from headrace.gateway.endpoints.fleet import Fleet
from headrace.gateway.kv_events.monitor import KvEventMonitor, KvEventStatistics
from headrace.gateway.kv_events.sources import parse_sources
from headrace.gateway.prefix_index import ChainHashers, Holder, PrefixIndex, PrefixIndexStatistics
from headrace.gateway.router import Router
from headrace.gateway.routing import POLICIES
from headrace.gateway.settings import GatewaySettings
from headrace.gateway.telemetry.decision_file import DecisionFile


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingStatistics:
    """What routing knows, and from where."""

    index: PrefixIndexStatistics
    kv_events: KvEventStatistics


class RoutingParts:
    """Made before the endpoints, which need holders of it; `join` then gives it the fleet."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._index = PrefixIndex(max_bytes=settings.max_prefix_index_bytes)
        self._hashers = ChainHashers()
        self._router = Router(POLICIES[settings.policy](draw=secrets.randbelow), self._index)
        self._monitor: KvEventMonitor | None = None
        self.decision_file = _decision_file(settings)

    def new_holder(self, name: str) -> Holder:
        """For the cache of a new endpoint."""
        return self._index.add_holder(name)

    def join(self, fleet: Fleet) -> Chooser:
        """Who chooses among the endpoints of `fleet`, and what follows their KV events."""
        self._monitor = KvEventMonitor(
            self._index,
            self._hashers,
            configured=parse_sources(self._settings.kv_event_source),
            asks=self._settings.kv_events == "auto",
        )
        return Chooser(fleet, self._router, self._hashers, session_header=self._settings.session_header)

    def follow(self, endpoint: Endpoint) -> None:
        """It has joined the fleet: follow its events."""
        if self._monitor is not None:
            self._monitor.follow(endpoint)

    async def forget(self, endpoint: Endpoint) -> None:
        """It has left: nothing is known of its cache."""
        if self._monitor is not None:
            await self._monitor.forget(endpoint)
        for holder in endpoint.holders:
            self._index.remove_holder(holder)

    def note_restart(self, endpoint: Endpoint) -> None:
        """Its cache is empty again. Where events tell of it they have said so, and may have said more since."""
        for holder in endpoint.holders:
            if not holder.has_events:
                self._index.clear(holder)

    def start(self) -> None:
        """Begin to write decisions."""
        if self.decision_file is not None:
            self.decision_file.start()

    async def aclose(self) -> None:
        """End both. Idempotent."""
        if self._monitor is not None:
            await self._monitor.aclose()
        if self.decision_file is not None:
            await self.decision_file.aclose()

    def statistics(self) -> RoutingStatistics:
        assert self._monitor is not None, "the fleet has not joined"
        return RoutingStatistics(index=self._index.statistics(), kv_events=self._monitor.statistics())

    def __repr__(self) -> str:
        return f"RoutingParts({self._router!r}, {self._monitor!r})"


def _decision_file(settings: GatewaySettings) -> DecisionFile | None:
    if settings.decision_log is None:
        return None
    return DecisionFile(
        Path(settings.decision_log),
        share=settings.decision_log_share,
        max_bytes=settings.max_decision_log_bytes,
        draw=secrets.randbelow,
    )
