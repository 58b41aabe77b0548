"""The gateway at one moment, as the dashboard and /state show it, and the rates that need the moment before."""

import time
from collections import deque
from collections.abc import Callable

import msgspec

from headrace.aio.stall import LoopStallMonitor
from headrace.gateway.admission.control import Admission, AdmissionStatistics
from headrace.gateway.admission.prices import money_text
from headrace.gateway.admission.usage_totals import ModelTotals
from headrace.gateway.decisions import Decision, DecisionLog
from headrace.gateway.endpoint import Endpoint
from headrace.gateway.fleet import Fleet
from headrace.gateway.instruments import Instruments
from headrace.gateway.parity import ParityLedger, ParityStatistics
from headrace.gateway.routing_parts import RoutingParts
from headrace.gateway.settle import Ledger
from headrace.tokenization import TokenizationService

_NUM_SAMPLES = 60
_MAX_KEYS_SHOWN = 50


class EndpointView(msgspec.Struct, kw_only=True):
    """One endpoint's line."""

    name: str
    is_healthy: bool
    why: str
    breaker: str
    models: list[str]
    num_in_flight: int
    num_done: int
    num_failed: int
    num_cancelled: int
    num_connections: int


class TokenizationView(msgspec.Struct, kw_only=True):
    """Hits of the cache, and what waits or is encoded now."""

    num_hits: int
    num_misses: int
    num_waiting: int


class ParityView(msgspec.Struct, kw_only=True):
    """One model's agreement with its engines' counts."""

    model: str
    exact_ratio: float | None
    num_exact: int
    num_drift: int
    reasons: dict[str, int]


class KeyView(msgspec.Struct, kw_only=True):
    """What one key has used since the start."""

    name: str
    num_requests: int
    prompt_tokens: int
    completion_tokens: int
    cost: str


class AdmissionView(msgspec.Struct, kw_only=True):
    """Keys, limits and queues."""

    num_keys: int
    why_local: str | None
    """Why limits that should be shared are not."""
    why_keys_stale: str | None
    num_waiting: dict[str, int]
    num_turned_away: int
    """Requests for which the queue was full, or too slow."""
    keys: list[KeyView]
    """Those that used most, by cost and tokens."""


class RoutingView(msgspec.Struct, kw_only=True):
    """What is known of the endpoints' caches, and from where."""

    num_index_blocks: int
    num_index_bytes: int
    num_event_sources: int
    num_event_batches: int
    num_event_restarts: int
    num_event_gaps: int
    """Gaps that no replay filled."""


class Snapshot(msgspec.Struct, kw_only=True):
    """All of it; what goes over the wire once a second."""

    time_s: float
    uptime_s: float
    policy: str
    is_healthy: bool
    endpoints: list[EndpointView]
    num_in_flight: int
    num_client_connections: int
    num_requests: int
    num_disconnects: int
    requests_per_s: float
    tokens_per_s: float
    requests_per_s_history: list[float]
    tokens_per_s_history: list[float]
    loop_lag_ms: float
    tokenization: TokenizationView
    admission: AdmissionView
    routing: RoutingView
    parity: list[ParityView]
    decisions: list[Decision]


class Sampler:
    """Takes snapshots; each tells the rates since the one before, so one caller takes them, at even times."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        ledger: Ledger,
        parity: ParityLedger,
        decisions: DecisionLog,
        admission: Admission,
        routing: RoutingParts,
        tokenization: TokenizationService,
        instruments: Instruments,
        stalls: LoopStallMonitor,
        policy_name: str,
        count_connections: Callable[[], int],
    ) -> None:
        self._fleet = fleet
        self._ledger = ledger
        self._parity = parity
        self._decisions = decisions
        self._admission = admission
        self._routing = routing
        self._tokenization = tokenization
        self._instruments = instruments
        self._stalls = stalls
        self._policy_name = policy_name
        self._count_connections = count_connections
        self._started_s = time.monotonic()
        self._last_s = self._started_s
        self._last_counts = (0, 0)
        self._requests_per_s: deque[float] = deque(maxlen=_NUM_SAMPLES)
        self._tokens_per_s: deque[float] = deque(maxlen=_NUM_SAMPLES)

    def take(self) -> Snapshot:
        """The state now; also written to the gauges of /metrics."""
        now_s = time.monotonic()
        self._add_rates(now_s)
        lag_s = self._stalls.take_longest_lag_s()
        endpoints = [_view_of(endpoint, now_s=now_s) for endpoint in self._fleet.endpoints]
        num_connections = self._count_connections()
        self._set_gauges(endpoints, num_connections=num_connections)
        admission = self._admission.statistics()
        self._set_admission_gauges(admission)
        return Snapshot(
            time_s=time.time(),
            uptime_s=now_s - self._started_s,
            policy=self._policy_name,
            is_healthy=self._fleet.num_healthy > 0,
            endpoints=endpoints,
            num_in_flight=sum(view.num_in_flight for view in endpoints),
            num_client_connections=num_connections,
            num_requests=self._ledger.num_requests,
            num_disconnects=self._ledger.num_disconnects,
            requests_per_s=self._requests_per_s[-1],
            tokens_per_s=self._tokens_per_s[-1],
            requests_per_s_history=list(self._requests_per_s),
            tokens_per_s_history=list(self._tokens_per_s),
            loop_lag_ms=lag_s * 1e3,
            tokenization=self._view_tokenization(),
            admission=_view_admission(admission),
            routing=self._view_routing(),
            parity=[_view_parity(statistics) for statistics in self._parity.statistics()],
            decisions=self._decisions.latest(),
        )

    def _add_rates(self, now_s: float) -> None:
        elapsed_s = max(now_s - self._last_s, 1e-3)
        counts = (self._ledger.num_requests, self._ledger.num_completion_tokens)
        self._requests_per_s.append((counts[0] - self._last_counts[0]) / elapsed_s)
        self._tokens_per_s.append((counts[1] - self._last_counts[1]) / elapsed_s)
        self._last_s, self._last_counts = now_s, counts

    def _set_gauges(self, endpoints: list[EndpointView], *, num_connections: int) -> None:
        self._instruments.connections.set(num_connections)
        for view in endpoints:
            self._instruments.in_flight.labels(view.name).set(view.num_in_flight)
            self._instruments.healthy.labels(view.name).set(view.is_healthy)

    def _set_admission_gauges(self, admission: AdmissionStatistics) -> None:
        self._instruments.limits_are_local.set(admission.why_local is not None)
        self._instruments.keys_are_stale.set(admission.why_keys_stale is not None)
        for priority, num_waiting in admission.gate.num_waiting.items():
            self._instruments.queued.labels(priority).set(num_waiting)

    def _view_routing(self) -> RoutingView:
        statistics = self._routing.statistics()
        index, events = statistics.index, statistics.kv_events
        self._instruments.prefix_index_bytes.set(index.num_bytes)
        self._instruments.kv_event_sources.set(events.num_sources)
        return RoutingView(
            num_index_blocks=index.num_blocks,
            num_index_bytes=index.num_bytes,
            num_event_sources=events.num_sources,
            num_event_batches=events.num_batches,
            num_event_restarts=events.num_restarts,
            num_event_gaps=events.num_unfilled_gaps,
        )

    def _view_tokenization(self) -> TokenizationView:
        statistics = self._tokenization.statistics()
        return TokenizationView(
            num_hits=statistics.cache.num_hits,
            num_misses=statistics.cache.num_misses,
            num_waiting=sum(lane.num_queued for lane in statistics.lanes),
        )


def _view_of(endpoint: Endpoint, *, now_s: float) -> EndpointView:
    load = endpoint.load.statistics()
    return EndpointView(
        name=endpoint.name,
        is_healthy=endpoint.is_healthy,
        why=endpoint.why_unhealthy or endpoint.last_failure or "",
        breaker=endpoint.breaker.state(now_s).value,
        models=list(endpoint.models),
        num_in_flight=load.num_in_flight,
        num_done=load.num_done,
        num_failed=load.num_failed,
        num_cancelled=load.num_cancelled,
        num_connections=endpoint.pool.statistics().num_open,
    )


def _view_admission(admission: AdmissionStatistics) -> AdmissionView:
    most = sorted(admission.totals.items(), key=lambda one: _use_of(one[1]), reverse=True)[:_MAX_KEYS_SHOWN]
    return AdmissionView(
        num_keys=admission.num_keys,
        why_local=admission.why_local,
        why_keys_stale=admission.why_keys_stale,
        num_waiting=admission.gate.num_waiting,
        num_turned_away=admission.gate.num_refused + admission.gate.num_timed_out,
        keys=[
            KeyView(
                name=name,
                num_requests=totals.num_requests,
                prompt_tokens=totals.prompt_tokens,
                completion_tokens=totals.completion_tokens,
                cost=money_text(totals.cost),
            )
            for name, totals in most
        ],
    )


def _use_of(totals: ModelTotals) -> tuple[int, int]:
    return totals.cost, totals.prompt_tokens + totals.completion_tokens


def _view_parity(statistics: ParityStatistics) -> ParityView:
    return ParityView(
        model=statistics.model,
        exact_ratio=statistics.exact_ratio,
        num_exact=statistics.num_exact,
        num_drift=statistics.num_drift,
        reasons=statistics.reasons,
    )
