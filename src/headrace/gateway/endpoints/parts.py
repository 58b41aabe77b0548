"""All that has to do with which endpoints there are, put together: sources, lifecycle, probes, and the fleet itself."""

import dataclasses
import time
from collections.abc import Callable, Sequence

from headrace.breaker import Breaker
from headrace.gateway.deadlines import Deadlines
from headrace.gateway.discovery.entry import spec_of
from headrace.gateway.discovery.follow import ADMIN_API, Discovery
from headrace.gateway.discovery.source import EndpointSpec
from headrace.gateway.discovery.sources import sources_of
from headrace.gateway.endpoints.endpoint import Endpoint
from headrace.gateway.endpoints.fleet import Fleet
from headrace.gateway.endpoints.health import HealthMonitor
from headrace.gateway.endpoints.lifecycle import Companion, Lifecycle
from headrace.gateway.endpoints.wanted import (
    EndpointDetails,
    EndpointList,
    EndpointState,
    ReportedView,
    SourceView,
    Wanted,
)
from headrace.gateway.routing_parts import RoutingParts
from headrace.gateway.settings import GatewaySettings, endpoint_weights, upstream_keys
from headrace.gateway.upstream.connection import UpstreamTimeouts
from headrace.gateway.upstream.pool import UpstreamPool

_MAX_BREAKER_PAUSE_S = 30.0


class EndpointParts:
    """Made with the gateway; `start` brings the first endpoints. Other parts that keep something for every endpoint are
    `companions`. `on_models_changed` is called in the loop when the fleet serves other models than before."""

    def __init__(
        self,
        settings: GatewaySettings,
        *,
        fleet: Fleet,
        routing: RoutingParts,
        deadlines: Deadlines,
        settings_file: str | None,
        on_models_changed: Callable[[], None],
        on_restart: Callable[[Endpoint], None],
        on_return: Callable[[Endpoint], None],
        companions: Sequence[Companion] = (),
    ) -> None:
        self._settings = settings
        self._routing = routing
        self._deadlines = deadlines
        self._weights = endpoint_weights(settings.endpoint_weight)
        self._keys = upstream_keys(settings.upstream_api_key)
        self.fleet = fleet
        self.health = HealthMonitor(
            fleet,
            interval_s=settings.health_interval_s,
            timeout_s=settings.health_timeout_s,
            unhealthy_after=settings.unhealthy_after,
            asks_load=settings.load_metrics == "auto",
            on_models_changed=on_models_changed,
            on_restart=on_restart,
            on_return=on_return,
        )
        self.lifecycle = Lifecycle(
            fleet,
            make=self._make,
            companions=(routing, *companions, self.health),
            drain_timeout_s=settings.endpoint_drain_timeout_s,
        )
        self.discovery = Discovery(
            sources_of(
                settings.endpoint,
                endpoints_file=settings.endpoints_file,
                settings_file=settings_file,
                interval_s=settings.discovery_interval_s,
            ),
            on_change=self._take,
        )

    async def start(self, wanted: Wanted | None = None) -> None:
        """Find the endpoints, and probe each once. `wanted` is what the admin API has said before."""
        if wanted is not None:
            await self.apply(wanted)
        await self.discovery.start(timeout_s=self._settings.health_timeout_s)
        await self.health.wait_probed()

    async def aclose(self) -> None:
        """End all of it, and cut the connections. Idempotent."""
        await self.discovery.aclose()
        await self.health.aclose()
        await self.lifecycle.aclose()

    async def apply(self, wanted: Wanted) -> None:
        """What the admin API wants from now on."""
        specs = [spec_of(entry, origin=ADMIN_API, where=ADMIN_API) for entry in wanted.added]
        self.lifecycle.set_drained(frozenset(wanted.drained))
        self.discovery.tell(ADMIN_API, specs)

    async def list(self) -> EndpointList:
        """Every endpoint and every source, as they are."""
        now = time.monotonic()
        return EndpointList(
            data=[self._details_of(endpoint, now=now) for endpoint in self.fleet.endpoints],
            sources=[
                SourceView(
                    name=name, num_endpoints=one.num_endpoints, trouble=one.trouble, num_troubles=one.num_troubles
                )
                for name, one in self.discovery.statistics().items()
            ],
        )

    def _take(self, specs: tuple[EndpointSpec, ...]) -> None:
        self.lifecycle.apply([self._completed(spec) for spec in specs])

    def _completed(self, spec: EndpointSpec) -> EndpointSpec:
        """`spec` with what settings of their own say of its endpoint."""
        weight = self._weights.get(spec.url, spec.weight)
        key = spec.api_key or self._keys.get(spec.url, self._keys.get(None))
        return dataclasses.replace(spec, weight=weight, api_key=key)

    def _make(self, spec: EndpointSpec) -> Endpoint:
        settings = self._settings
        pool = UpstreamPool(
            spec.address,
            timeouts=UpstreamTimeouts(
                connect_s=settings.connect_timeout_s,
                first_byte_s=settings.first_byte_timeout_s,
                idle_s=settings.idle_timeout_s,
            ),
            max_idle=settings.max_idle_connections,
            idle_timeout_s=settings.upstream_keepalive_timeout_s,
            deadlines=self._deadlines,
        )
        breaker = Breaker(
            num_failures_to_open=settings.breaker_failures,
            pause_s=settings.breaker_pause_s,
            max_pause_s=max(_MAX_BREAKER_PAUSE_S, settings.breaker_pause_s),
        )
        return Endpoint(
            pool=pool,
            breaker=breaker,
            holder=self._routing.new_holder(spec.url),
            block_size=settings.block_size,
            spec=spec,
        )

    def _details_of(self, endpoint: Endpoint, *, now: float) -> EndpointDetails:
        load, reported = endpoint.load.statistics(), endpoint.reported_load
        return EndpointDetails(
            url=endpoint.name,
            origin=endpoint.origin,
            state=self._state_of(endpoint),
            why=endpoint.why_draining or endpoint.why_unhealthy or endpoint.last_failure or "",
            is_healthy=endpoint.is_healthy,
            breaker=endpoint.breaker.state(now).value,
            weight=endpoint.weight,
            models=list(endpoint.models),
            has_api_key=endpoint.spec.api_key is not None,
            block_size=endpoint.block_size,
            has_kv_events=any(holder.has_events for holder in endpoint.holders),
            num_in_flight=load.num_in_flight,
            num_waiting_tokens=load.num_waiting_tokens,
            num_done=load.num_done,
            num_failed=load.num_failed,
            num_cancelled=load.num_cancelled,
            reported=None
            if reported is None
            else ReportedView(
                num_running=reported.num_running,
                num_waiting=reported.num_waiting,
                kv_cache_usage=reported.kv_cache_usage,
            ),
        )

    def _state_of(self, endpoint: Endpoint) -> EndpointState:
        if self.lifecycle.is_leaving(endpoint):
            return "leaving"
        if endpoint.why_draining is not None:
            return "draining"
        return "ready" if endpoint.is_healthy else "down"

    def __repr__(self) -> str:
        return f"EndpointParts({self.lifecycle!r}, {self.discovery!r})"
