"""The engine's core: requests in, steps, token deltas out. One thread drives it; it knows no sockets, tasks or text."""

from collections.abc import Iterable

from headrace.engine.config import EngineConfig
from headrace.engine.executor.protocol import Executor
from headrace.engine.kv_cache import KVCacheBlocks
from headrace.engine.messages import AddRequest, CoreStatistics, TokenDelta
from headrace.engine.scheduler import Scheduler


class EngineCore:
    """A scheduler, a KV cache and an executor. Building one loads the model and runs it once (seconds, blocking).

    Not thread-safe. Every request that was added ends with exactly one delta that has a `finish_reason`, unless a step
    raises: then the core is broken and must not be used again.
    """

    def __init__(self, config: EngineConfig, executor: Executor | None = None) -> None:
        self._executor = executor if executor is not None else _local_executor(config)
        self._cache = KVCacheBlocks(
            self._executor.start(),
            block_size=config.cache.block_size,
            enable_prefix_caching=config.cache.enable_prefix_caching,
        )
        self._scheduler = Scheduler(
            config.scheduler,
            cache=self._cache,
            eos_token_ids=config.model.eos_token_ids,
            seed=config.execution.seed,
        )
        self._refused: list[TokenDelta] = []
        self._num_steps = 0

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
        refused = self._scheduler.add(request)
        if refused is not None:
            self._refused.append(refused)

    def abort(self, request_ids: Iterable[str]) -> tuple[TokenDelta, ...]:
        """End these requests; their blocks are free on return. Unknown and finished ids are passed over."""
        return self._scheduler.abort(request_ids)

    def has_work(self) -> bool:
        return self._scheduler.has_work or bool(self._refused)

    def step(self) -> tuple[TokenDelta, ...]:
        """Compute one batch of tokens; what changed for which request. Without work, nothing happens."""
        deltas = self._take_refused()
        if self._scheduler.has_work:
            plan = self._scheduler.schedule()
            result = self._executor.execute(plan)
            deltas += self._scheduler.update(plan, result)
            self._num_steps += 1
        return deltas

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes. False, with no change, while a request holds blocks."""
        return self._cache.reset()

    def check_integrity(self) -> None:
        """Assert that the bookkeeping is sound; walks everything."""
        self._scheduler.check_integrity()

    def statistics(self) -> CoreStatistics:
        scheduler = self._scheduler.statistics()
        return CoreStatistics(
            num_running=scheduler.num_running,
            num_waiting=scheduler.num_waiting,
            num_blocks=self._cache.num_blocks,
            num_free_blocks=self._cache.num_free_blocks,
            num_steps=self._num_steps,
            num_preemptions=scheduler.num_preemptions,
            prompt_tokens=scheduler.prompt_tokens,
            generation_tokens=scheduler.generation_tokens,
            prefix_cache_queries=scheduler.prefix_cache_queries,
            prefix_cache_hits=scheduler.prefix_cache_hits,
        )

    def _take_refused(self) -> tuple[TokenDelta, ...]:
        refused = tuple(self._refused)
        self._refused.clear()
        return refused


def _local_executor(config: EngineConfig) -> Executor:
    from headrace.engine.executor.local import LocalExecutor  # torch loads here, and only if no executor is given

    return LocalExecutor(config)
