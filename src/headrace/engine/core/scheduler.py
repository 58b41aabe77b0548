"""Who computes how many tokens in the next step. Pure: requests, events and block counts in, plans and deltas out.

One budget of tokens a step, spent in this order:
1. requests that decode get their one token: a long prompt never slows a running answer by more than the budget;
2. running requests that still prefill get what is left, in order. A long one, with more missing than half of the
   budget, takes half of what is left at first, and the rest only if nobody else wants it: so short prompts are answered
   beside it, and it moves on however many of them come;
3. waiting requests are admitted in order, while their whole prompt finds blocks (the first that does not fit waits,
   and so do those behind it: nothing overtakes, so nothing starves). One whose LoRA adapter finds no place is passed
   over by requests without an adapter only: those cannot keep it from the next place. Long prompts are computed one
   after the other: the second waits until the first is nearly done, and shorter ones pass it.
A running request that finds no block takes those of the last in order, which waits again and recomputes later. The
first in order never loses its blocks to another, so each step makes progress.
"""

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace.engine.config import SchedulerConfig
from headrace.engine.core.admission import reason_to_refuse, reason_to_turn_away
from headrace.engine.core.kv_cache import KVCacheBlocks
from headrace.engine.core.request import Guide, Request, RequestState, make_request
from headrace.engine.core.request_messages import admitted_request, delta_of, failed
from headrace.engine.core.step_plan import AdmittedRequest, ScheduledRequest, StepPlan, StepResult
from headrace.engine.lora.active_adapters import ActiveAdapters
from headrace.engine.wire.messages import AddRequest, TokenDelta, TokenLogprobs
from headrace.errors import OverloadedError
from headrace.prefix_hash import BlockHasher


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStatistics:
    """Requests now, and counters since the start (tokens unless named otherwise)."""

    num_running: int
    num_waiting: int
    num_preemptions: int
    num_refused: int
    """Requests that found too many waiting."""
    prompt_tokens: int
    generation_tokens: int
    prefix_cache_queries: int
    prefix_cache_hits: int


@dataclass(slots=True)
class _Step:
    """The plan that is being made."""

    budget: int
    now: float
    scheduled: dict[str, ScheduledRequest] = field(default_factory=dict)
    admitted: list[AdmittedRequest] = field(default_factory=list)
    long_prefills: list[Request] = field(default_factory=list)
    """Planned with half of what was left, in order."""


class Scheduler:
    """The waiting and running requests of one engine. Drive it as `schedule`, run the plan, `update`, again."""

    def __init__(
        self,
        config: SchedulerConfig,
        *,
        cache: KVCacheBlocks,
        hasher: BlockHasher | None = None,
        eos_token_ids: Iterable[int] = (),
        seed: int = 0,
        max_loras: int = 0,
    ) -> None:
        self._config = config
        self._cache = cache
        self._hasher = hasher or BlockHasher(cache.block_size)
        self._eos_token_ids = frozenset(eos_token_ids)
        self._seed = seed
        self._adapters = ActiveAdapters(max_loras)
        self._lora_epoch = 0
        self._max_loras = max_loras
        self._requests: dict[str, Request] = {}
        self._waiting: list[Request] = []  # sorted by order
        self._running: list[Request] = []  # sorted by order
        self._released: list[str] = []
        self._num_added = 0
        self._num_preemptions = 0
        self._num_refused = 0
        self._prompt_tokens = 0
        self._generation_tokens = 0
        self._prefix_cache_queries = 0
        self._prefix_cache_hits = 0

    def __repr__(self) -> str:
        return f"Scheduler({len(self._running)} running, {len(self._waiting)} waiting, {self._cache!r})"

    @property
    def has_work(self) -> bool:
        return bool(self._requests)

    def is_waiting(self, request_id: str) -> bool:
        """Whether it is live and not in the running batch."""
        request = self._requests.get(request_id)
        return request is not None and request.state is RequestState.WAITING

    def add(self, message: AddRequest, *, now: float = 0.0, guide: Guide | None = None) -> TokenDelta | None:
        """Queue a request. The delta that ends it, if it can never run here or too many wait.

        `guide` is what its answer must follow, where it asked for that.
        """
        assert message.request_id not in self._requests, f"{message.request_id} is live already"
        request = make_request(
            message,
            order=self._order_of(message),
            sampling_seed=self._sampling_seed(message),
            eos_token_ids=self._eos_token_ids,
            max_num_tokens=min(self._config.max_model_len, self._cache.num_slots),
            guide=guide,
        )
        self._num_added += 1
        request.queued_s = now
        if (refusal := self._refusal(request, priority=message.priority)) is not None:
            return refusal
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
        return tuple(delta_of(request, finish_reason="abort") for request in known)

    def schedule(self, *, now: float = 0.0) -> StepPlan:
        """The next step's plan, empty only if there is no request. `now` dates the start of a request."""
        step = _Step(budget=self._config.max_num_batched_tokens, now=now)
        self._schedule_decodes(step)
        self._schedule_prefills(step)
        self._admit_waiting(step)
        if step.long_prefills:
            self._spend_rest(step)
            self._admit_waiting(step)  # with a rest left, the long prompt at work ends here and the next one may begin
            self._spend_rest(step)
        return self._to_plan(step)

    def preempt_all(self) -> StepPlan:
        """Take all blocks back; every request waits and computes its tokens again. A plan that only releases them."""
        step = _Step(budget=0, now=0.0)
        for request in reversed(tuple(self._running)):
            self._preempt(request, step)
        return self._to_plan(step)

    def update(self, plan: StepPlan, result: StepResult, *, now: float = 0.0) -> tuple[TokenDelta, ...]:
        """Take a plan's outcome: what to tell the front end."""
        deltas = []
        for scheduled in plan.scheduled:
            request = self._requests[scheduled.request_id]
            if result.failures and (failure := result.failures.get(scheduled.request_id)) is not None:
                self._finish(request)
                deltas.append(failed(request, failure.message, kind=failure.kind))
                continue
            request.num_computed_tokens += scheduled.num_tokens
            if scheduled.num_foretold:
                assert request.prompt_logprobs is not None
                request.prompt_logprobs += result.prompt_logprobs[scheduled.request_id]
            if request.num_computed_tokens % self._cache.block_size < scheduled.num_tokens:  # a block is whole now
                self._publish(request)
            if not scheduled.is_sampled:
                continue
            if request.num_output_tokens == 0:
                request.first_token_s = now
            if request.pooling is not None:
                deltas.append(self._end_pooled(request, result.embeddings[scheduled.request_id]))
            else:
                logprobs = result.logprobs.get(scheduled.request_id)
                deltas.append(self._append(request, result.token_ids[scheduled.request_id], logprobs))
        return tuple(deltas)

    def note_removed_adapter(self) -> None:
        """Requests with an adapter that are admitted from now on share no block with those before: its files may be
        others when it is loaded again under the same name and path. Running ones end with what they have."""
        self._lora_epoch += 1

    def statistics(self) -> SchedulerStatistics:
        return SchedulerStatistics(
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            num_preemptions=self._num_preemptions,
            num_refused=self._num_refused,
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
        assert len(self._adapters) == len({r.lora.lora_int_id for r in self._running if r.lora is not None})
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

    def _refusal(self, request: Request, *, priority: int) -> TokenDelta | None:
        num_free_seats = self._config.max_num_seqs - len(self._running)
        overload = reason_to_turn_away(request, self._config, waiting=self._waiting, num_free_seats=num_free_seats)
        if overload is not None:
            self._num_refused += 1
            return failed(request, overload, kind=OverloadedError.__name__)
        reason = reason_to_refuse(
            request,
            self._config,
            priority=priority,
            num_slots=self._cache.num_slots,
            has_adapters=self._max_loras > 0,
        )
        return failed(request, reason) if reason is not None else None

    # Making a plan ...

    # Only decodes look for blocks: a request is given those of its whole prompt when it is admitted.

    def _schedule_decodes(self, step: _Step) -> None:
        for request in [r for r in self._running if r.num_missing_tokens == 1]:
            if request.num_computed_tokens % self._cache.block_size > 0:  # its last block has room
                self._plan_tokens(request, 1, (), step)
            elif request.state is RequestState.RUNNING:
                self._schedule(request, step)

    def _schedule_prefills(self, step: _Step) -> None:
        for request in [r for r in self._running if r.num_missing_tokens > 1]:
            if request.state is RequestState.RUNNING and step.budget > 0:
                self._schedule(request, step)

    def _schedule(self, request: Request, step: _Step) -> None:
        """Plan the next tokens of a running request, at the cost of later ones if blocks are short."""
        num_tokens = self._share(request, step)
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

    def _share(self, request: Request, step: _Step) -> int:
        """How many of its missing tokens the request gets at first."""
        if not self._is_long(request):
            return min(request.num_missing_tokens, step.budget)
        step.long_prefills.append(request)
        return max(1, step.budget // 2)

    def _is_long(self, request: Request) -> bool:
        return self._config.enable_chunked_prefill and (
            request.num_missing_tokens > self._config.max_num_batched_tokens // 2
        )

    def _spend_rest(self, step: _Step) -> None:
        """What nobody wanted goes to the long prefills, whose blocks they hold already."""
        long_prefills, step.long_prefills = step.long_prefills, []
        for request in long_prefills:
            planned = step.scheduled[request.request_id]
            step.budget += planned.num_tokens
            num_tokens = min(request.num_missing_tokens, step.budget)
            self._plan_tokens(request, num_tokens, planned.new_block_ids, step)

    def _preempt(self, victim: Request, step: _Step) -> None:
        """Take the blocks of `victim` away; it waits in its old place in the order and computes its tokens again."""
        assert victim.request_id not in step.scheduled, "what goes first in order is planned first"
        self._running.remove(victim)
        self._release_blocks(victim)
        victim.state = RequestState.WAITING
        victim.num_computed_tokens = 0
        victim.num_preemptions += 1
        insort(self._waiting, victim, key=_order)
        self._num_preemptions += 1

    def _admit_waiting(self, step: _Step) -> None:
        while step.budget > 0 and len(self._running) < self._config.max_num_seqs:
            request = self._next_to_admit(step)
            if request is None or not self._open_blocks(request, step):
                return
            self._waiting.remove(request)
            self._start(request, step)

    def _next_to_admit(self, step: _Step) -> Request | None:
        """The first that waits, unless its adapter has no place, or it is a long prompt behind one at work."""
        first_long = step.long_prefills[0].order if step.long_prefills else None
        waits_for_adapter = False
        for request in self._waiting:
            if (waits_for_adapter and request.lora is not None) or self._waits_for_leader(request):
                continue
            if not self._adapters.has_place_for(request.lora):
                waits_for_adapter = True
            elif first_long is None or first_long > request.order or not self._is_long(request):
                return request
        return None

    def _waits_for_leader(self, request: Request) -> bool:
        """Whether another request is about to compute the same prompt, which this one will then find in the cache."""
        leader = self._requests.get(request.leader_id) if request.leader_id is not None else None
        return leader is not None and leader.num_computed_tokens < leader.num_prompt_tokens

    def _open_blocks(self, request: Request, step: _Step) -> bool:
        """Give the request all its blocks, cached ones first, if one is left for each running request to grow."""
        if self._cache.enable_prefix_caching:
            request.enter_lora_epoch(self._lora_epoch)
            self._hash_blocks(request)
        hashes = request.block_hashes if request.reads_prefix_cache else ()
        prefix = self._cache.find_prefix(hashes, num_tokens=request.num_tokens)
        num_missing = request.num_tokens - len(prefix) * self._cache.block_size
        if num_missing > step.budget and not self._config.enable_chunked_prefill:
            return False
        if not self._cache.can_open(prefix, num_tokens=request.num_tokens, num_reserved=len(self._running)):
            return False
        self._cache.open(request.request_id, prefix=prefix)
        self._cache.grow(request.request_id, num_tokens=request.num_tokens)
        request.num_computed_tokens = len(prefix) * self._cache.block_size
        return True

    def _start(self, request: Request, step: _Step) -> None:
        if not request.was_admitted:
            request.scheduled_s = step.now
            self._count_admission(request)
        request.state = RequestState.RUNNING
        insort(self._running, request, key=_order)
        self._adapters.enter(request.lora)
        step.admitted.append(admitted_request(request))
        num_tokens = self._share(request, step)
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
        is_sampled = num_tokens == request.num_missing_tokens
        step.scheduled[request.request_id] = ScheduledRequest(
            request_id=request.request_id,
            start=request.num_computed_tokens,
            num_tokens=num_tokens,
            new_block_ids=new_blocks,
            is_sampled=is_sampled,
            num_foretold=request.num_foretold(num_tokens) if request.prompt_logprobs is not None else 0,
            grammar_mask=request.guide.next_mask if is_sampled and request.guide is not None else None,
        )

    def _to_plan(self, step: _Step) -> StepPlan:
        released = tuple(self._released)
        self._released.clear()
        return StepPlan(released=released, admitted=tuple(step.admitted), scheduled=tuple(step.scheduled.values()))

    # Taking a step's outcome ...

    def _publish(self, request: Request) -> None:
        num_computed = request.num_computed_tokens
        if self._cache.num_unpublished(request.request_id, num_computed_tokens=num_computed) > 0:
            self._hash_blocks(request)
            content = request.content if self._cache.tells_events else None
            self._cache.publish(
                request.request_id, request.block_hashes, num_computed_tokens=num_computed, content=content
            )

    def _hash_blocks(self, request: Request) -> None:
        self._hasher.extend(
            request.block_hashes,
            request.token_ids,
            first_block_keys=request.first_block_keys,
            every_block_keys=request.every_block_keys,
        )

    def _end_pooled(self, request: Request, embedding: bytes) -> TokenDelta:
        self._finish(request)
        return delta_of(request, finish_reason="stop", embedding=embedding)

    def _append(self, request: Request, token_id: int, logprobs: TokenLogprobs | None) -> TokenDelta:
        self._generation_tokens += 1
        finish = request.append(token_id)
        if finish is None and request.guide is not None and request.guide.error is not None:
            self._finish(request)
            error = request.guide.error
            return failed(request, error.message, kind=type(error).__name__, param=error.param)
        if finish is None:
            return delta_of(request, token_id, logprobs=logprobs)
        self._finish(request)
        return delta_of(
            request, token_id, finish_reason=finish.reason, stop_reason=finish.stop_reason, logprobs=logprobs
        )

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
        self._adapters.leave(request.lora)
        self._released.append(request.request_id)


def _order(request: Request) -> tuple[float, ...]:
    return request.order
