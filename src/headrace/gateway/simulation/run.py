"""Runs a trace through gateways and simulated engines, event by event, and says what came of it."""

import heapq
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean, pstdev
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from headrace.gateway.prefix_index import ChainHasher, StoredBlocks
from headrace.gateway.router import Routed
from headrace.gateway.routing import POLICIES, Draw, Policy, PolicyName
from headrace.gateway.simulation.engine import BlockCache, EngineModel, Job, SimulatedEngine
from headrace.gateway.simulation.gateway import SimulatedGateway
from headrace.gateway.simulation.trace import SimulatedPrompt, TraceRequest, prompts_of

Knowledge: TypeAlias = Literal["events", "decisions"]
"""What the router learns from: the engines' KV events, or its own decisions and their answers."""

_NUM_QUANTILES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What is simulated."""

    policy: PolicyName
    num_endpoints: int
    engine: EngineModel
    num_gateways: int = 1
    """They share nothing; each request comes to one of them by chance."""
    knowledge: Knowledge = "events"
    trace_block_size: int = 512
    time_scale: float = 1.0
    """Times of arrival are multiplied by it: 0.5 is twice the load."""
    max_index_bytes: int = 1 << 30
    load_interval_s: float = 2.0
    """How often each of several gateways asks the engines for their load."""


class Ceilings(NamedTuple):
    """What no routing can pass."""

    of_capacity: float
    """Hits of one cache as large as all together, with every prompt computed at once."""
    unbounded: float
    """The same of a cache without limit."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What one policy made of a trace."""

    policy: PolicyName
    num_endpoints: int
    num_gateways: int
    num_requests: int
    hit_ratio: float
    """Cached blocks of all whole blocks of all prompts."""
    ceiling_ratio: float
    """The same with one cache as large as all together."""
    unbounded_ratio: float
    """The same with one cache without limit."""
    mean_ttft_s: float
    p50_ttft_s: float
    p99_ttft_s: float
    ttft_quantiles_s: list[float]
    """From the shortest to the longest, in steps of a hundredth."""
    decision_p50_us: float
    decision_p99_us: float
    decision_max_us: float
    load_spread: float
    """Standard deviation of the prompt tokens computed per endpoint, in parts of their mean."""
    loads: list[int]
    """Prompt tokens computed, by endpoint, the busiest first."""
    index_bytes: int
    """Of one gateway."""


@dataclass(slots=True)
class _Tally:
    ttfts_s: list[float] = field(default_factory=list)
    decisions_ns: list[int] = field(default_factory=list)
    num_blocks: int = 0
    num_hits: int = 0


class _Sent(NamedTuple):
    """A request on its way: who sent it, and where it is worked on."""

    gateway: SimulatedGateway
    routed: Routed
    engine: int
    job: Job


_Action: TypeAlias = Callable[[float], None]


def simulate(
    requests: Sequence[TraceRequest],
    setup: Setup,
    *,
    draw: Draw,
    ceilings: Ceilings | None = None,
    new_policy: Callable[[], Policy] | None = None,
) -> Outcome:
    """Run `requests`, which are in order of time, through one policy. `ceilings` are computed where they are not given;
    `new_policy` makes another policy than the one that the setup names."""
    new_policy = new_policy or partial(POLICIES[setup.policy], draw=draw)
    simulation = _Simulation(setup, new_policy=new_policy, draw=draw)
    simulation.run(requests)
    return simulation.outcome(ceilings or ceilings_of(requests, setup))


def ceilings_of(requests: Sequence[TraceRequest], setup: Setup) -> Ceilings:
    """The same for every policy."""
    num_blocks = setup.engine.num_blocks * setup.num_endpoints
    return Ceilings(
        of_capacity=_ceiling(requests, setup, num_blocks=num_blocks),
        unbounded=_ceiling(requests, setup, num_blocks=1 << 62),
    )


class _Simulation:
    def __init__(self, setup: Setup, *, new_policy: Callable[[], Policy], draw: Draw) -> None:
        self._setup = setup
        self._draw = draw
        self._hasher = ChainHasher(setup.engine.block_size)
        names = [f"endpoint-{number}" for number in range(setup.num_endpoints)]
        self._gateways = [
            SimulatedGateway(
                new_policy(),
                engine_names=names,
                block_size=setup.engine.block_size,
                has_events=setup.knowledge == "events",
                max_index_bytes=setup.max_index_bytes,
            )
            for _ in range(setup.num_gateways)
        ]
        self._engines = [self._new_engine(number, name) for number, name in enumerate(names)]
        self._events: list[tuple[float, int, _Action]] = []
        self._order = itertools.count()
        self._tally = _Tally()
        self._sent: dict[int, _Sent] = {}
        self._is_over = False

    def run(self, requests: Sequence[TraceRequest]) -> None:
        if len(self._gateways) > 1:
            for at, gateway in enumerate(self._gateways):
                first_s = self._setup.load_interval_s * (at + 1) / len(self._gateways)
                self._schedule(first_s, partial(self._ask_load, gateway))
        for request, prompt in zip(requests, _prompts(requests, self._setup, self._hasher), strict=True):
            now = request.timestamp / 1e3 * self._setup.time_scale
            self._advance(now)
            self._arrive(request, prompt, now=now)
        self._is_over = True
        self._advance(float("inf"))

    def _new_engine(self, number: int, name: str) -> SimulatedEngine:
        cache = BlockCache(self._setup.engine.num_blocks)
        if self._setup.knowledge == "events":
            cache.on_removed = partial(self._tell_removed, number)
        return SimulatedEngine(name=name, model=self._setup.engine, cache=cache)

    def _advance(self, until_s: float) -> None:
        while self._events and self._events[0][0] <= until_s:
            at_s, _, action = heapq.heappop(self._events)
            action(at_s)

    def _schedule(self, at_s: float, action: _Action) -> None:
        heapq.heappush(self._events, (at_s, next(self._order), action))

    def _arrive(self, request: TraceRequest, prompt: SimulatedPrompt, *, now: float) -> None:
        gateway = self._gateways[self._draw(len(self._gateways)) if len(self._gateways) > 1 else 0]
        begun_ns = time.perf_counter_ns()
        routed = gateway.choose(prompt, now=now)
        self._tally.decisions_ns.append(time.perf_counter_ns() - begun_ns)
        job = Job(
            number=len(self._tally.decisions_ns),
            arrival_s=now,
            num_tokens=prompt.num_tokens,
            num_output_tokens=request.output_length,
            chain=prompt.chains(0)[0].chain.tolist(),
            own_hashes=prompt.own_hashes.tolist(),
        )
        self._sent[job.number] = _Sent(gateway, routed, routed.index, job)
        self._engines[routed.index].add(job)
        self._start(self._engines[routed.index], now=now)

    def _ask_load(self, gateway: SimulatedGateway, now: float) -> None:
        for number, engine in enumerate(self._engines):
            gateway.hear_load(number, num_in_hand=engine.num_in_hand)
        if not self._is_over:
            self._schedule(now + self._setup.load_interval_s, partial(self._ask_load, gateway))

    def _start(self, engine: SimulatedEngine, *, now: float) -> None:
        duration_s = engine.start_next()
        if duration_s is not None:
            self._schedule(now + duration_s, lambda at_s: self._end_prefill(engine, now=at_s))

    def _end_prefill(self, engine: SimulatedEngine, *, now: float) -> None:
        job, decode_s = engine.end_prefill()
        sent = self._sent.pop(job.number)
        self._tally.ttfts_s.append(now - job.arrival_s)
        self._tally.num_blocks += len(job.chain)
        self._tally.num_hits += job.num_cached_blocks
        self._tell_stored(sent)
        engine.cache.use(job.chain)
        sent.gateway.note_answering(sent.routed, job, now=now)
        self._schedule(now + decode_s, lambda _: self._end(engine, sent))
        self._start(engine, now=now)

    def _end(self, engine: SimulatedEngine, sent: _Sent) -> None:
        engine.end()
        sent.gateway.note_end(sent.routed)

    def _tell_stored(self, sent: _Sent) -> None:
        if self._setup.knowledge != "events":
            return
        job = sent.job
        first_new = self._engines[sent.engine].cache.num_leading(job.chain)
        stored = StoredBlocks(
            names=job.chain[first_new:],
            parent=job.chain[first_new - 1] if first_new else None,
            start=self._hasher.start(),
            own_hashes=job.own_hashes[first_new:],
        )
        if stored.names:
            for gateway in self._gateways:
                gateway.hear_stored(sent.engine, stored, self._hasher)

    def _tell_removed(self, number: int, block: int) -> None:
        for gateway in self._gateways:
            gateway.hear_removed(number, block)

    def outcome(self, ceilings: Ceilings) -> Outcome:
        tally, ttfts_s = self._tally, sorted(self._tally.ttfts_s)
        decisions_us = sorted(ns / 1e3 for ns in tally.decisions_ns)
        computed = sorted((engine.num_prefilled_tokens for engine in self._engines), reverse=True)
        return Outcome(
            policy=self._setup.policy,
            num_endpoints=self._setup.num_endpoints,
            num_gateways=self._setup.num_gateways,
            num_requests=len(ttfts_s),
            hit_ratio=tally.num_hits / max(1, tally.num_blocks),
            ceiling_ratio=ceilings.of_capacity,
            unbounded_ratio=ceilings.unbounded,
            mean_ttft_s=fmean(ttfts_s),
            p50_ttft_s=_percentile(ttfts_s, 50),
            p99_ttft_s=_percentile(ttfts_s, 99),
            ttft_quantiles_s=[_percentile(ttfts_s, 100 * at / _NUM_QUANTILES) for at in range(_NUM_QUANTILES + 1)],
            decision_p50_us=_percentile(decisions_us, 50),
            decision_p99_us=_percentile(decisions_us, 99),
            decision_max_us=decisions_us[-1],
            load_spread=pstdev(computed) / fmean(computed),
            loads=computed,
            index_bytes=self._gateways[0].index.statistics().num_bytes,
        )


def _prompts(requests: Sequence[TraceRequest], setup: Setup, hasher: ChainHasher) -> Iterator[SimulatedPrompt]:
    return prompts_of(requests, trace_block_size=setup.trace_block_size, hasher=hasher)


def _ceiling(requests: Sequence[TraceRequest], setup: Setup, *, num_blocks: int) -> float:
    cache, num_hits, num_whole = BlockCache(num_blocks), 0, 0
    for prompt in _prompts(requests, setup, ChainHasher(setup.engine.block_size)):
        chain = prompt.chains(0)[0].chain.tolist()
        num_hits += min(cache.num_leading(chain), (prompt.num_tokens - 1) // setup.engine.block_size)
        num_whole += len(chain)
        cache.use(chain)
    return num_hits / max(1, num_whole)


def _percentile(ordered: Sequence[float], percent: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
