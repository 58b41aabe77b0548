"""Who computes how many tokens in the next step. Pure: requests, events and block counts in, plans and deltas out.

One budget of tokens a step, spent in this order:
1. requests that decode get their one token: a long prompt never slows a running answer by more than the budget;
2. running requests that still prefill get what is left, in order;
3. waiting requests are admitted in order, while their whole prompt finds blocks (the first that does not fit waits,
   and so do those behind it: nothing overtakes, so nothing starves).
A running request that finds no block takes those of the last in order, which waits again and recomputes later. The
first in order never loses its blocks to another, so each step makes progress.
"""

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace.engine.config import SchedulerConfig
from headrace.engine.kv_cache import KVCacheBlocks
from headrace.engine.messages import AddRequest, TokenDelta
from headrace.engine.request import Request, RequestState, make_request
from headrace.engine.step_plan import AdmittedRequest, ScheduledRequest, StepPlan, StepResult
from headrace.prefix_hash import BlockHasher


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStatistics:
    """Requests now, and counters since the start (tokens unless named otherwise)."""

    num_running: int
    num_waiting: int
    num_preemptions: int
    prompt_tokens: int
    generation_tokens: int
    prefix_cache_queries: int
    prefix_cache_hits: int


@dataclass(slots=True)
class _Step:
    """The plan that is being made."""

    budget: int
    scheduled: dict[str, ScheduledRequest] = field(default_factory=dict)
    admitted: list[AdmittedRequest] = field(default_factory=list)


class Scheduler:
    """The waiting and running requests of one engine. Drive it as `schedule`, run the plan, `update`, again."""

    def __init__(
        self, config: SchedulerConfig, *, cache: KVCacheBlocks, eos_token_ids: Iterable[int] = (), seed: int = 0
    ) -> None:
        self._config = config
        self._cache = cache
        self._hasher = BlockHasher(cache.block_size)
        self._eos_token_ids = frozenset(eos_token_ids)
        self._seed = seed
        self._requests: dict[str, Request] = {}
        self._waiting: list[Request] = []  # sorted by order
        self._running: list[Request] = []  # sorted by order
        self._released: list[str] = []
        self._num_added = 0
        self._num_preemptions = 0
        self._prompt_tokens = 0
        self._generation_tokens = 0
        self._prefix_cache_queries = 0
        self._prefix_cache_hits = 0

    def __repr__(self) -> str:
        return f"Scheduler({len(self._running)} running, {len(self._waiting)} waiting, {self._cache!r})"

    @property
    def has_work(self) -> bool:
        return bool(self._requests)

    def add(self, message: AddRequest) -> TokenDelta | None:
        """Queue a request. The delta that ends it, if it can never run here."""
        assert message.request_id not in self._requests, f"{message.request_id} is live already"
        request = make_request(
            message,
            order=self._order_of(message),
            sampling_seed=self._sampling_seed(message),
            eos_token_ids=self._eos_token_ids,
            max_num_tokens=min(self._config.max_model_len, self._cache.num_slots),
        )
        self._num_added += 1
        refusal = self._reason_to_refuse(request, message)
        if refusal is not None:
            return _failed(request, refusal)
        self._requests[request.request_id] = request
        insort(self._waiting, request, key=_order)
        return None

    def abort(self, request_ids: Iterable[str]) -> tuple[TokenDelta, ...]:
        """End these requests and free their blocks; their last deltas. Unknown ids are passed over."""
        known = [
            self._requests[request_id] for request_id in dict.fromkeys(request_ids) if request_id in self._requests
        ]
        for request in known:
            self._finish(request)
        return tuple(_delta(request, finish_reason="abort") for request in known)

    def schedule(self) -> StepPlan:
        """The next step's plan; with nothing scheduled only if there is no request."""
        step = _Step(budget=self._config.max_num_batched_tokens)
        self._schedule_decodes(step)
        self._schedule_prefills(step)
        self._admit_waiting(step)
        return self._to_plan(step)

    def update(self, plan: StepPlan, result: StepResult) -> tuple[TokenDelta, ...]:
        """Take a plan's outcome: what to tell the front end."""
        deltas = []
        for scheduled in plan.scheduled:
            request = self._requests[scheduled.request_id]
            request.num_computed_tokens += scheduled.num_tokens
            self._publish(request)
            if scheduled.is_sampled:
                deltas.append(self._append(request, result.token_ids[scheduled.request_id]))
        return tuple(deltas)

    def statistics(self) -> SchedulerStatistics:
        return SchedulerStatistics(
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            num_preemptions=self._num_preemptions,
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generation_tokens,
            prefix_cache_queries=self._prefix_cache_queries,
            prefix_cache_hits=self._prefix_cache_hits,
        )

    def check_integrity(self) -> None:
        """Assert that queues, states and blocks agree. For tests and idle engines: walks everything."""
        self._cache.check_integrity()
        for queue, state in ((self._waiting, RequestState.WAITING), (self._running, RequestState.RUNNING)):
            assert [r.order for r in queue] == sorted(r.order for r in queue), (
                f"{state.value} requests are out of order"
            )
            assert all(r.state is state for r in queue), f"a request among the {state.value} ones is not"
        live = {r.request_id for r in (*self._waiting, *self._running)}
        assert live == set(self._requests), "a request is in no queue, or in one too many"
        assert len(self._running) <= self._config.max_num_seqs
        assert all(r.num_computed_tokens == 0 for r in self._waiting), "a waiting request holds nothing"
        for request in self._running:
            num_blocks = len(self._cache.block_table(request.request_id))
            assert num_blocks * self._cache.block_size >= request.num_computed_tokens
        if not self._running:
            assert self._cache.num_free_blocks == self._cache.num_blocks, "blocks leaked"

    # Admission of new requests ...

    def _order_of(self, message: AddRequest) -> tuple[float, ...]:
        if self._config.policy == "priority":
            return (message.priority, message.arrival_time, self._num_added)
        return (self._num_added,)

    def _sampling_seed(self, message: AddRequest) -> int:
        """A request without a seed gets one, so that every draw is made the same way."""
        seed = message.sampling_params.seed
        return seed if seed is not None else hash((self._seed, self._num_added)) & (2**63 - 1)

    def _reason_to_refuse(self, request: Request, message: AddRequest) -> str | None:
        if message.priority != 0 and self._config.policy != "priority":
            return f"priority is {message.priority}, but this engine schedules fcfs; set scheduling_policy=priority"
        if request.num_prompt_tokens == 0:
            return "the prompt is empty; it must hold at least one token"
        if request.num_prompt_tokens >= self._config.max_model_len:
            return (
                f"the prompt has {request.num_prompt_tokens} tokens, which leaves none for the answer in a context of "
                f"{self._config.max_model_len}; shorten it"
            )
        if request.num_prompt_tokens > self._cache.num_slots:
            return (
                f"the prompt has {request.num_prompt_tokens} tokens and the whole KV cache holds "
                f"{self._cache.num_slots}; shorten it or raise kv_cache_memory_bytes"
            )
        return None

    # Making a plan ...

    # Only decodes look for blocks: a request is given those of its whole prompt when it is admitted.

    def _schedule_decodes(self, step: _Step) -> None:
        for request in [r for r in self._running if r.num_missing_tokens == 1]:
            if request.state is RequestState.RUNNING:
                self._schedule(request, step)

    def _schedule_prefills(self, step: _Step) -> None:
        for request in [r for r in self._running if r.num_missing_tokens > 1]:
            if request.state is RequestState.RUNNING and step.budget > 0:
                self._schedule(request, step)

    def _schedule(self, request: Request, step: _Step) -> None:
        """Plan the next tokens of a running request, at the cost of later ones if blocks are short."""
        num_tokens = min(request.num_missing_tokens, step.budget)
        assert num_tokens > 0
        while True:
            new_blocks = self._cache.grow(request.request_id, num_tokens=request.num_computed_tokens + num_tokens)
            if new_blocks is not None:
                self._plan_tokens(request, num_tokens, new_blocks, step)
                return
            victim = self._running[-1]
            self._preempt(victim, step)
            if victim is request:
                return

    def _preempt(self, victim: Request, step: _Step) -> None:
        """Take the blocks of `victim` away; it waits in its old place in the order and computes its tokens again."""
        assert victim.request_id not in step.scheduled, "what goes first in order is planned first"
        self._running.remove(victim)
        self._release_blocks(victim)
        victim.state = RequestState.WAITING
        victim.num_computed_tokens = 0
        insort(self._waiting, victim, key=_order)
        self._num_preemptions += 1

    def _admit_waiting(self, step: _Step) -> None:
        while self._waiting and step.budget > 0 and len(self._running) < self._config.max_num_seqs:
            request = self._waiting[0]
            if not self._open_blocks(request):
                return
            del self._waiting[0]
            self._start(request, step)

    def _open_blocks(self, request: Request) -> bool:
        """Give the request all its blocks, cached ones first, if one is left for each running request to grow."""
        if self._cache.enable_prefix_caching:
            self._hasher.extend(request.block_hashes, request.token_ids)
        prefix = self._cache.find_prefix(request.block_hashes, num_tokens=request.num_tokens)
        if not self._cache.can_open(prefix, num_tokens=request.num_tokens, num_reserved=len(self._running)):
            return False
        self._cache.open(request.request_id, prefix=prefix)
        self._cache.grow(request.request_id, num_tokens=request.num_tokens)
        request.num_computed_tokens = len(prefix) * self._cache.block_size
        return True

    def _start(self, request: Request, step: _Step) -> None:
        if not request.was_admitted:
            self._count_admission(request)
        request.state = RequestState.RUNNING
        insort(self._running, request, key=_order)
        step.admitted.append(_admitted(request))
        num_tokens = min(request.num_missing_tokens, step.budget)
        self._plan_tokens(request, num_tokens, self._cache.block_table(request.request_id), step)

    def _count_admission(self, request: Request) -> None:
        request.was_admitted = True
        request.num_cached_tokens = request.num_computed_tokens
        self._prompt_tokens += request.num_prompt_tokens
        if self._cache.enable_prefix_caching:
            self._prefix_cache_queries += request.num_prompt_tokens
            self._prefix_cache_hits += request.num_cached_tokens

    def _plan_tokens(self, request: Request, num_tokens: int, new_blocks: tuple[int, ...], step: _Step) -> None:
        step.budget -= num_tokens
        step.scheduled[request.request_id] = ScheduledRequest(
            request_id=request.request_id,
            start=request.num_computed_tokens,
            num_tokens=num_tokens,
            new_block_ids=new_blocks,
            is_sampled=num_tokens == request.num_missing_tokens,
        )

    def _to_plan(self, step: _Step) -> StepPlan:
        released = tuple(self._released)
        self._released.clear()
        return StepPlan(released=released, admitted=tuple(step.admitted), scheduled=tuple(step.scheduled.values()))

    # Taking a step's outcome ...

    def _publish(self, request: Request) -> None:
        num_computed = request.num_computed_tokens
        if self._cache.num_unpublished(request.request_id, num_computed_tokens=num_computed) > 0:
            self._hasher.extend(request.block_hashes, request.token_ids)
            self._cache.publish(request.request_id, request.block_hashes, num_computed_tokens=num_computed)

    def _append(self, request: Request, token_id: int) -> TokenDelta:
        self._generation_tokens += 1
        finish = request.append(token_id)
        if finish is None:
            return _delta(request, token_id)
        self._finish(request)
        return _delta(request, token_id, finish_reason=finish.reason, stop_reason=finish.stop_reason)

    def _finish(self, request: Request) -> None:
        if request.state is RequestState.RUNNING:
            self._running.remove(request)
            self._release_blocks(request)
        else:
            self._waiting.remove(request)
        request.state = RequestState.FINISHED
        del self._requests[request.request_id]

    def _release_blocks(self, request: Request) -> None:
        self._cache.close(request.request_id)
        self._released.append(request.request_id)


def _order(request: Request) -> tuple[float, ...]:
    return request.order


def _admitted(request: Request) -> AdmittedRequest:
    return AdmittedRequest(
        request_id=request.request_id,
        token_ids=tuple(request.token_ids),
        num_prompt_tokens=request.num_prompt_tokens,
        params=request.params,
        stop_token_ids=request.stop_token_ids,
        sampling_seed=request.sampling_seed,
    )


def _delta(
    request: Request, *token_ids: int, finish_reason: str | None = None, stop_reason: int | None = None
) -> TokenDelta:
    return TokenDelta(
        request_id=request.request_id,
        new_token_ids=token_ids,
        num_cached_tokens=request.num_cached_tokens,
        finish_reason=finish_reason,
        stop_reason=stop_reason,
    )


def _failed(request: Request, error: str) -> TokenDelta:
    return TokenDelta(request_id=request.request_id, new_token_ids=(), finish_reason="error", error=error)
