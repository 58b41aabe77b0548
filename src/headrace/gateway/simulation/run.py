"""Runs a trace through the router and simulated engines, event by event, and says what came of it."""

import heapq
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean, pstdev
from typing import Literal, TypeAlias

import msgspec

from headrace.gateway.prefix_index import ChainHasher, PrefixIndex, StoredBlocks
from headrace.gateway.router import Router
from headrace.gateway.routing import POLICIES, Draw, PolicyName
from headrace.gateway.simulation.engine import BlockCache, EngineModel, Job, SimulatedEngine
from headrace.gateway.simulation.trace import SimulatedPrompt, TraceRequest, prompts_of

Knowledge: TypeAlias = Literal["events", "decisions"]
"""What the router learns from: the engines' KV events, or its own decisions and their answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What is simulated."""

    policy: PolicyName
    num_endpoints: int
    engine: EngineModel
    knowledge: Knowledge = "events"
    trace_block_size: int = 512
    time_scale: float = 1.0
    """Times of arrival are multiplied by it: 0.5 is twice the load."""
    max_index_bytes: int = 1 << 30


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What one policy made of a trace."""

    policy: PolicyName
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
    decision_p50_us: float
    decision_p99_us: float
    decision_max_us: float
    load_spread: float
    """Standard deviation of the prompt tokens computed per endpoint, in parts of their mean."""
    index_bytes: int


@dataclass(slots=True)
class _Tally:
    ttfts_s: list[float] = field(default_factory=list)
    decisions_ns: list[int] = field(default_factory=list)
    num_blocks: int = 0
    num_hits: int = 0


_Action: TypeAlias = Callable[[float], None]


def simulate(requests: Sequence[TraceRequest], setup: Setup, *, draw: Draw) -> Outcome:
    """Run `requests`, which are in order of time, through one policy."""
    return _Simulation(setup, draw=draw).run(requests)


class _Simulation:
    def __init__(self, setup: Setup, *, draw: Draw) -> None:
        self._setup = setup
        self._hasher = ChainHasher(setup.engine.block_size)
        self._index = PrefixIndex(max_bytes=setup.max_index_bytes)
        self._router = Router(POLICIES[setup.policy](draw=draw), self._index)
        self._engines = [self._new_engine(f"endpoint-{number}") for number in range(setup.num_endpoints)]
        self._events: list[tuple[float, int, _Action]] = []
        self._order = itertools.count()
        self._tally = _Tally()

    def run(self, requests: Sequence[TraceRequest]) -> Outcome:
        for request, prompt in zip(requests, self._prompts(requests), strict=True):
            now = request.timestamp / 1e3 * self._setup.time_scale
            self._advance(now)
            self._arrive(request, prompt, now=now)
        self._advance(float("inf"))
        return self._outcome(requests)

    def _prompts(self, requests: Sequence[TraceRequest]) -> Iterator[SimulatedPrompt]:
        return prompts_of(requests, trace_block_size=self._setup.trace_block_size, hasher=self._hasher)

    def _new_engine(self, name: str) -> SimulatedEngine:
        holder = self._index.add_holder(name)
        cache = BlockCache(self._setup.engine.num_blocks)
        if self._setup.knowledge == "events":
            holder.has_events = True
            cache.on_removed = lambda block: self._index.remove_block(holder, block)
        return SimulatedEngine(name=name, model=self._setup.engine, holders=(holder,), cache=cache)

    def _advance(self, until_s: float) -> None:
        while self._events and self._events[0][0] <= until_s:
            at_s, _, action = heapq.heappop(self._events)
            action(at_s)

    def _schedule(self, at_s: float, action: _Action) -> None:
        heapq.heappush(self._events, (at_s, next(self._order), action))

    def _arrive(self, request: TraceRequest, prompt: SimulatedPrompt, *, now: float) -> None:
        begun_ns = time.perf_counter_ns()
        routed = self._router.choose(prompt, self._engines, now=now)
        self._tally.decisions_ns.append(time.perf_counter_ns() - begun_ns)
        engine = self._engines[routed.index]
        job = Job(
            arrival_s=now,
            num_tokens=prompt.num_tokens,
            num_output_tokens=request.output_length,
            chain=prompt.chains(0)[0].chain.tolist(),
            own_hashes=prompt.own_hashes.tolist(),
            routed=routed,
        )
        engine.add(job)
        self._start(engine, now=now)

    def _start(self, engine: SimulatedEngine, *, now: float) -> None:
        duration_s = engine.start_next()
        if duration_s is not None:
            self._schedule(now + duration_s, lambda at_s: self._end_prefill(engine, now=at_s))

    def _end_prefill(self, engine: SimulatedEngine, *, now: float) -> None:
        job, decode_s = engine.end_prefill()
        self._tally.ttfts_s.append(now - job.arrival_s)
        self._tally.num_blocks += len(job.chain)
        self._tally.num_hits += job.num_cached_blocks
        self._tell_stored(engine, job)
        engine.cache.use(job.chain)
        self._router.note_answering(job.routed, now=now)
        self._router.note_cached_tokens(job.routed, job.num_cached_blocks * self._setup.engine.block_size)
        self._schedule(now + decode_s, lambda _: engine.end())
        self._start(engine, now=now)

    def _tell_stored(self, engine: SimulatedEngine, job: Job) -> None:
        if self._setup.knowledge != "events":
            return
        first_new = engine.cache.num_leading(job.chain)
        stored = StoredBlocks(
            names=job.chain[first_new:],
            parent=job.chain[first_new - 1] if first_new else None,
            start=self._hasher.start(),
            own_hashes=job.own_hashes[first_new:],
        )
        if stored.names:
            self._index.add_blocks(engine.holders[0], stored, self._hasher)

    def _outcome(self, requests: Sequence[TraceRequest]) -> Outcome:
        tally, ttfts_s = self._tally, sorted(self._tally.ttfts_s)
        decisions_us = sorted(ns / 1e3 for ns in tally.decisions_ns)
        computed = [engine.num_prefilled_tokens for engine in self._engines]
        num_blocks = self._setup.engine.num_blocks * self._setup.num_endpoints
        return Outcome(
            policy=self._setup.policy,
            num_requests=len(requests),
            hit_ratio=tally.num_hits / max(1, tally.num_blocks),
            ceiling_ratio=self._ceiling(requests, num_blocks=num_blocks),
            unbounded_ratio=self._ceiling(requests, num_blocks=1 << 62),
            mean_ttft_s=fmean(ttfts_s),
            p50_ttft_s=_percentile(ttfts_s, 50),
            p99_ttft_s=_percentile(ttfts_s, 99),
            decision_p50_us=_percentile(decisions_us, 50),
            decision_p99_us=_percentile(decisions_us, 99),
            decision_max_us=decisions_us[-1],
            load_spread=pstdev(computed) / fmean(computed),
            index_bytes=self._index.statistics().num_bytes,
        )

    def _ceiling(self, requests: Sequence[TraceRequest], *, num_blocks: int) -> float:
        """What one cache of `num_blocks` would hit, with every prompt computed at once."""
        cache, num_hits, num_whole = BlockCache(num_blocks), 0, 0
        for prompt in self._prompts(requests):
            chain = prompt.chains(0)[0].chain.tolist()
            num_hits += min(cache.num_leading(chain), (prompt.num_tokens - 1) // self._setup.engine.block_size)
            num_whole += len(chain)
            cache.use(chain)
        return num_hits / max(1, num_whole)


def _percentile(ordered: Sequence[float], percent: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
