"""The engine's core: requests in, steps, token deltas out. One thread drives it; it knows no sockets, tasks or text."""

import contextlib
import time
from collections.abc import Callable, Iterable
from typing import TypeAlias

import msgspec

from headrace.engine.config import EngineConfig
from headrace.engine.core.kv_cache import KVCacheBlocks
from headrace.engine.core.operations import CoreOperations
from headrace.engine.core.request import Guide
from headrace.engine.core.scheduler import Scheduler
from headrace.engine.core.step_plan import StepPlan
from headrace.engine.executor.choose import make_executor
from headrace.engine.executor.protocol import Executor
from headrace.engine.guided.desk import GrammarDesk, Settled
from headrace.engine.guided.grammar import CompileGrammar, GrammarCompiler
from headrace.engine.kv_events.feed import KVEventFeed
from headrace.engine.model_config import ModelConfig
from headrace.engine.wire.messages import AddRequest, CoreStatistics, Ready, TokenDelta
from headrace.prefix_hash import BlockHasher

Announce: TypeAlias = Callable[[tuple[TokenDelta, ...]], None]

_GRAMMAR_WAIT_S = 0.02
"""A core whose requests all wait for grammars looks so often for messages."""


class EngineCore:
    """A scheduler, a KV cache and an executor. Building one loads the model and runs it once (seconds, blocking).

    Not thread-safe. Every request that was added ends with exactly one delta that has a `finish_reason`, unless a step
    raises: then the core is broken and must not be used again.
    """

    def __init__(
        self,
        config: EngineConfig,
        executor: Executor | None = None,
        *,
        compile_grammar: CompileGrammar | None = None,
    ) -> None:
        self._executor = executor if executor is not None else make_executor(config)
        self._events = KVEventFeed(config.kv_events, block_size=config.cache.block_size)
        self._grammars = GrammarDesk(
            compile_grammar or GrammarCompiler(config.model.tokenizer, eos_token_ids=config.model.eos_token_ids)
        )
        try:
            num_blocks = self._executor.start()
        except BaseException:
            self.close()
            raise
        self._cache = KVCacheBlocks(
            num_blocks,
            block_size=config.cache.block_size,
            enable_prefix_caching=config.cache.enable_prefix_caching,
            events=self._events.log,
        )
        self._scheduler = Scheduler(
            config.scheduler,
            cache=self._cache,
            hasher=_block_hasher(config),
            eos_token_ids=config.model.eos_token_ids,
            seed=config.execution.seed + config.parallel.data_parallel_rank,  # cores draw apart from each other
            max_loras=config.lora.max_loras if config.lora is not None else 0,
        )
        self._model = config.model
        self.operations = CoreOperations(
            executor=self._executor, scheduler=self._scheduler, cache=self._cache, events=self._events
        )
        self._refused: list[TokenDelta] = []
        self._num_steps = 0
        self._num_step_tokens = 0

    def __repr__(self) -> str:
        return f"EngineCore({self._scheduler!r}, {self._num_steps} steps)"

    @property
    def num_blocks(self) -> int:
        return self._cache.num_blocks

    @property
    def block_size(self) -> int:
        return self._cache.block_size

    def add_request(self, request: AddRequest) -> None:
        """Queue a request, whose id must not be live. One that can never run ends in the next step, with an error."""
        if request.pooling_params is not None:
            request = _with_pooling(request, self._model)
        elif request.sampling_params.structured_outputs is not None:
            self._grammars.add(request)
            return
        self._queue(request)

    def abort(self, request_ids: Iterable[str]) -> tuple[TokenDelta, ...]:
        """End these requests; their blocks are free on return. Unknown and finished ids are passed over."""
        request_ids = tuple(request_ids)
        unqueued = tuple(
            TokenDelta(request_id=request.request_id, new_token_ids=(), finish_reason="abort")
            for request in self._grammars.abort(request_ids)
        )
        return unqueued + self._scheduler.abort(request_ids)

    def has_work(self) -> bool:
        return self._has_steps_to_do or bool(self._refused) or len(self._grammars) > 0

    @property
    def _has_steps_to_do(self) -> bool:
        return self._scheduler.has_work and not self.operations.is_sleeping()

    def step(self, *, announce: Announce | None = None) -> tuple[TokenDelta, ...]:
        """Compute one batch of tokens; what changed for which request. Without work, nothing happens.

        Before it is computed `announce` is told which requests begin to run in it and which were put back to wait.
        """
        self._queue_guided()
        deltas = self._take_refused()
        self._num_step_tokens = 0
        if self._has_steps_to_do:
            plan = self._scheduler.schedule(now=time.monotonic())
            if announce is not None and (moved := self._moved(plan)):
                announce(moved)
            result = self._executor.execute(plan)
            deltas += self._scheduler.update(plan, result, now=time.monotonic())
            self._num_steps += 1
            self._num_step_tokens = plan.num_tokens
            self._events.flush()
        return deltas

    def take_moved(self) -> tuple[TokenDelta, ...]:
        """Which requests an operation has put back to wait, once."""
        return _moves((request_id, False) for request_id in self.operations.take_put_back())

    def check(self) -> None:
        """For while there is no work: raises EngineError, with the cause, when a worker has ended by itself."""
        self._executor.check()

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes. False, with no change, while a request holds blocks."""
        return self.operations.reset_prefix_cache()

    def check_integrity(self) -> None:
        """Assert that the bookkeeping is sound; walks everything."""
        self.operations.check_integrity()

    def ready(self, *, load_s: float) -> Ready:
        """What the front end is to know of it."""
        return Ready(
            num_blocks=self.num_blocks,
            block_size=self.block_size,
            load_s=load_s,
            kv_events_endpoint=self._events.endpoint,
            kv_events_replay_endpoint=self._events.replay_endpoint,
        )

    def close(self) -> None:
        """End what it started: workers, threads, sockets. The last call; idempotent."""
        with contextlib.ExitStack() as parts:  # each ends, whatever becomes of the others
            parts.callback(self._executor.close)
            parts.callback(self._events.close)
            parts.callback(self._grammars.close)

    def statistics(self) -> CoreStatistics:
        scheduler = self._scheduler.statistics()
        return CoreStatistics(
            num_running=scheduler.num_running,
            num_waiting=scheduler.num_waiting + len(self._grammars),
            num_blocks=self._cache.num_blocks,
            num_free_blocks=self._cache.num_free_blocks,
            num_steps=self._num_steps,
            num_preemptions=scheduler.num_preemptions,
            prompt_tokens=scheduler.prompt_tokens,
            generation_tokens=scheduler.generation_tokens,
            prefix_cache_queries=scheduler.prefix_cache_queries,
            prefix_cache_hits=scheduler.prefix_cache_hits,
            num_step_tokens=self._num_step_tokens,
            num_waiting_deferred=len(self._grammars) + (scheduler.num_waiting if self.operations.is_sleeping() else 0),
            num_cached_blocks=self._cache.num_cached_blocks,
            num_refused=scheduler.num_refused,
            sleep_level=self.operations.sleep_level,
            num_kv_event_batches=self._events.num_batches,
            num_kv_event_batches_unsent=self._events.num_unsent,
        )

    def _queue(self, request: AddRequest, *, guide: Guide | None = None) -> None:
        refused = self._scheduler.add(request, guide=guide, now=time.monotonic())
        if refused is not None:
            self._refused.append(refused)

    def _queue_guided(self) -> None:
        """Queue the requests whose grammars have been compiled, waiting a little when there is nothing else to do."""
        if len(self._grammars) == 0:
            return
        if not (self._has_steps_to_do or self._refused):
            self._grammars.wait(timeout_s=_GRAMMAR_WAIT_S)
        for settled in self._grammars.collect():
            if settled.matcher is not None:
                self._queue(settled.request, guide=settled.matcher)
            else:
                self._refused.append(_failed(settled))

    def _moved(self, plan: StepPlan) -> tuple[TokenDelta, ...]:
        begun = [(request.request_id, True) for request in plan.admitted]
        back = [(request_id, False) for request_id in plan.released if self._scheduler.is_waiting(request_id)]
        return _moves(back + begun)

    def _take_refused(self) -> tuple[TokenDelta, ...]:
        refused = tuple(self._refused)
        self._refused.clear()
        return refused


def _moves(moved: Iterable[tuple[str, bool]]) -> tuple[TokenDelta, ...]:
    """By request id whether it begins to run, or else waits again."""
    return tuple(
        TokenDelta(request_id=request_id, new_token_ids=(), is_running=is_running) for request_id, is_running in moved
    )


def _block_hasher(config: EngineConfig) -> BlockHasher:
    cache = config.cache
    return BlockHasher(cache.block_size, algorithm=cache.prefix_caching_hash_algo, seed=cache.prefix_caching_hash_seed)


def _failed(settled: Settled) -> TokenDelta:
    assert settled.error is not None
    return TokenDelta(
        request_id=settled.request.request_id,
        new_token_ids=(),
        finish_reason="error",
        error=settled.error.message,
        error_kind=type(settled.error).__name__,
        error_param=settled.error.param,
    )


def _with_pooling(request: AddRequest, model: ModelConfig) -> AddRequest:
    """The request with the model's own pooling where it names none. Raises InvalidRequestError."""
    assert request.pooling_params is not None
    pooling = request.pooling_params.for_model(default_pooling=model.default_pooling, hidden_size=model.hidden_size)
    return msgspec.structs.replace(request, pooling_params=pooling)
