"""Takes snapshots of the gateway, once a second: the state now, the rates since the one before, and the gauges of
/metrics on the way."""

import time
from collections import deque

from headrace._version import __version__
from headrace.aio.stall import LoopStallMonitor
from headrace.gateway.admin.recent import RecentCounts, quantile
from headrace.gateway.admin.snapshot import (
    AdmissionView,
    EndpointView,
    KeyView,
    ParityView,
    RoutingView,
    Snapshot,
    TimesView,
)
from headrace.gateway.admin.tokenization_view import TokenizationSampler
from headrace.gateway.admission.control import Admission, AdmissionStatistics
from headrace.gateway.admission.prices import money_text
from headrace.gateway.admission.slots import RequestSlots
from headrace.gateway.admission.usage_totals import ModelTotals
from headrace.gateway.endpoints.endpoint import Endpoint
from headrace.gateway.endpoints.fleet import Fleet
from headrace.gateway.http.server import HttpServer
from headrace.gateway.parity import ParityLedger, ParityStatistics
from headrace.gateway.routing_parts import RoutingParts
from headrace.gateway.settle import Ledger
from headrace.gateway.telemetry.decisions import DecisionLog
from headrace.gateway.telemetry.instruments import Instruments
from headrace.tokenization import TokenizationService
from headrace.tokenization.tallies import CounterTally, HistogramTally

NUM_SAMPLES = 60
_MAX_KEYS_SHOWN = 50


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
        slots: RequestSlots,
        server: HttpServer,
        tokenization: TokenizationService,
        instruments: Instruments,
        stalls: LoopStallMonitor,
        policy_name: str,
    ) -> None:
        self._fleet = fleet
        self._ledger = ledger
        self._parity = parity
        self._decisions = decisions
        self._admission = admission
        self._routing = routing
        self._slots = slots
        self._server = server
        self._tokenization = TokenizationSampler(tokenization, num_samples=NUM_SAMPLES)
        self._instruments = instruments
        self._stalls = stalls
        self._policy_name = policy_name
        self._rates = _Rates()
        self._overhead = _RecentTimes(instruments.overhead_s)
        self._first_byte = _RecentTimes(instruments.first_byte_s)
        self._hits: dict[str, RecentCounts] = {}
        self._lags_ms: deque[float] = deque(maxlen=NUM_SAMPLES)
        self._started_s = time.monotonic()
        instruments.info.set(__version__, policy_name, value=1)

    def take(self) -> Snapshot:
        """The state now; also written to the gauges of /metrics."""
        now_s = time.monotonic()
        self._rates.look(self._ledger, now_s=now_s, prompt_tokens=_sum_of(self._instruments.prompt_tokens))
        self._lags_ms.append(self._stalls.take_longest_lag_s() * 1e3)
        stalls = self._stalls.statistics()
        hits = self._look_at_hits()
        endpoints = [_view_of(one, now_s=now_s, hits=hits[one.name]) for one in self._fleet.endpoints]
        admission = self._admission.statistics()
        num_connections = self._server.statistics().num_connections
        self._set_gauges(endpoints, admission, num_connections=num_connections)
        return Snapshot(
            time_s=time.time(),
            version=__version__,
            uptime_s=now_s - self._started_s,
            policy=self._policy_name,
            is_healthy=self._fleet.num_healthy > 0,
            endpoints=endpoints,
            num_in_flight=sum(view.num_in_flight for view in endpoints),
            num_concurrent=self._slots.num_taken,
            max_concurrent=self._slots.num_slots,
            num_client_connections=num_connections,
            num_requests=self._ledger.num_requests,
            num_disconnects=self._ledger.num_disconnects,
            requests_per_s=self._rates.requests[-1],
            tokens_per_s=self._rates.completion_tokens[-1],
            prompt_tokens_per_s=self._rates.prompt_tokens[-1],
            requests_per_s_history=list(self._rates.requests),
            tokens_per_s_history=list(self._rates.completion_tokens),
            prompt_tokens_per_s_history=list(self._rates.prompt_tokens),
            hit_ratio=_ratio_of([sum(column) for column in zip(*hits.values(), strict=True)] or [0.0, 0.0]),
            loop_lag_ms=self._lags_ms[-1],
            loop_lag_ms_history=list(self._lags_ms),
            num_stalls=stalls.num_stalls,
            last_stall=stalls.last_stack,
            times=self._view_times(),
            tokenization=self._tokenization.take(),
            admission=_view_admission(admission),
            routing=self._view_routing(),
            parity=[_view_parity(statistics) for statistics in self._parity.statistics()],
            decisions=self._decisions.latest(),
        )

    def _look_at_hits(self) -> dict[str, list[float]]:
        """Cached prompt tokens and all, of each endpoint in the last minute."""
        names = [endpoint.name for endpoint in self._fleet.endpoints]
        cached = self._instruments.endpoint_cached_tokens.by_labels()
        prompt = self._instruments.endpoint_prompt_tokens.by_labels()
        self._hits = {name: self._hits.get(name) or RecentCounts(NUM_SAMPLES) for name in names}
        return {
            name: looks.look((cached.get((name,), 0.0), prompt.get((name,), 0.0))) for name, looks in self._hits.items()
        }

    def _view_times(self) -> TimesView:
        overhead_p50_ms, overhead_p99_ms = self._overhead.look()
        first_byte_p50_ms, first_byte_p99_ms = self._first_byte.look()
        return TimesView(
            overhead_p50_ms=overhead_p50_ms,
            overhead_p99_ms=overhead_p99_ms,
            first_byte_p50_ms=first_byte_p50_ms,
            first_byte_p99_ms=first_byte_p99_ms,
        )

    def _set_gauges(
        self, endpoints: list[EndpointView], admission: AdmissionStatistics, *, num_connections: int
    ) -> None:
        instruments = self._instruments
        instruments.parity.show(self._parity)
        instruments.connections.set(value=num_connections)
        instruments.concurrent.set(value=self._slots.num_taken)
        instruments.max_concurrent.set(value=self._slots.num_slots)
        instruments.in_flight.replace({(view.name,): view.num_in_flight for view in endpoints})
        instruments.healthy.replace({(view.name,): view.is_healthy for view in endpoints})
        usages = {(view.name,): view.kv_cache_usage for view in endpoints}
        instruments.kv_cache_usage.replace({name: usage for name, usage in usages.items() if usage is not None})
        instruments.keep_endpoints(view.name for view in endpoints)
        instruments.limits_are_local.set(value=admission.why_local is not None)
        instruments.keys_are_stale.set(value=admission.why_keys_stale is not None)
        instruments.queued.replace({(priority,): number for priority, number in admission.gate.num_waiting.items()})
        instruments.max_queued.set(value=admission.gate.max_waiting)

    def _view_routing(self) -> RoutingView:
        statistics = self._routing.statistics()
        index, events = statistics.index, statistics.kv_events
        self._instruments.prefix_index_bytes.set(value=index.num_bytes)
        self._instruments.prefix_index_blocks.set(value=index.num_blocks)
        self._instruments.kv_event_sources.set(value=events.num_sources)
        self._instruments.kv_event_batches.read(events.num_batches)
        self._instruments.kv_event_gaps.read(events.num_unfilled_gaps)
        return RoutingView(
            num_index_blocks=index.num_blocks,
            num_index_bytes=index.num_bytes,
            num_event_sources=events.num_sources,
            num_event_batches=events.num_batches,
            num_event_restarts=events.num_restarts,
            num_event_gaps=events.num_unfilled_gaps,
        )


class _Rates:
    """What is counted in a second, for the last minute."""

    def __init__(self) -> None:
        self.requests: deque[float] = deque(maxlen=NUM_SAMPLES)
        self.completion_tokens: deque[float] = deque(maxlen=NUM_SAMPLES)
        self.prompt_tokens: deque[float] = deque(maxlen=NUM_SAMPLES)
        self._last_s: float | None = None
        self._last: tuple[float, ...] = (0.0, 0.0, 0.0)

    def look(self, ledger: Ledger, *, now_s: float, prompt_tokens: float) -> None:
        counts = (ledger.num_requests, ledger.num_completion_tokens, prompt_tokens)
        elapsed_s = max(now_s - (now_s - 1.0 if self._last_s is None else self._last_s), 1e-3)
        series = (self.requests, self.completion_tokens, self.prompt_tokens)
        for rates, count, last in zip(series, counts, self._last, strict=True):
            rates.append((count - last) / elapsed_s)
        self._last_s, self._last = now_s, counts


class _RecentTimes:
    """Median and 99th percentile of a histogram in the last minute."""

    def __init__(self, histogram: HistogramTally) -> None:
        self._histogram = histogram
        self._recent = RecentCounts(NUM_SAMPLES)

    def look(self) -> tuple[float | None, float | None]:
        """In milliseconds."""
        counts = self._recent.look(self._histogram.counts())
        shares = [quantile(counts, self._histogram.bounds, share) for share in (0.5, 0.99)]
        p50_ms, p99_ms = (None if value is None else value * 1e3 for value in shares)
        return p50_ms, p99_ms


def _view_of(endpoint: Endpoint, *, now_s: float, hits: list[float]) -> EndpointView:
    load = endpoint.load.statistics()
    return EndpointView(
        name=endpoint.name,
        is_healthy=endpoint.is_healthy,
        why=endpoint.why_unhealthy or endpoint.last_failure or "",
        breaker=endpoint.breaker.state(now_s).value,
        models=list(endpoint.models),
        num_in_flight=load.num_in_flight,
        num_waiting_tokens=load.num_waiting_tokens,
        num_done=load.num_done,
        num_failed=load.num_failed,
        num_cancelled=load.num_cancelled,
        num_connections=endpoint.pool.statistics().num_open,
        hit_ratio=_ratio_of(hits),
        kv_cache_usage=endpoint.reported_load.kv_cache_usage if endpoint.reported_load else None,
        num_requests_elsewhere=endpoint.elsewhere.num_requests if endpoint.reported_load else None,
        why_draining=endpoint.why_draining,
        origin=endpoint.origin,
        weight=endpoint.weight,
        engine=endpoint.capability.engine,
    )


def _sum_of(counter: CounterTally) -> float:
    return sum(counter.by_labels().values())


def _ratio_of(part_and_whole: list[float]) -> float | None:
    part, whole = part_and_whole
    return part / whole if whole else None


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
                cached_tokens=totals.cached_tokens,
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
        num_by_cached_cause=statistics.cached_causes,
        drifting=list(statistics.drifting),
        demoted=[
            f"{one.endpoint} {one.route}"
            for one in statistics.token_in
            if one.state == "demoted" or one.proof == "differs"
        ],
    )
