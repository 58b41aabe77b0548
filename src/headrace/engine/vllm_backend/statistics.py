"""What vLLM tells its stat loggers, added up as a core's statistics. Knows vLLM's field names, not its classes."""

import msgspec

from headrace.engine.wire.messages import CoreStatistics


class VllmStatistics:
    """Given to vLLM as a factory of stat loggers; it is its own product, since there is one engine."""

    def __init__(self, *, num_blocks: int = 0) -> None:
        self.num_blocks = num_blocks
        self.block_size = 0
        self._now = CoreStatistics(num_blocks=num_blocks, num_free_blocks=num_blocks)

    def __call__(self, vllm_config: object, engine_index: int = 0) -> "VllmStatistics":  # noqa: ARG002 - vLLM's call
        cache_config = getattr(vllm_config, "cache_config", None)
        self.num_blocks = _int(cache_config, "num_gpu_blocks")
        self.block_size = _int(cache_config, "block_size")
        self._now = msgspec.structs.replace(self._now, num_blocks=self.num_blocks, num_free_blocks=self.num_blocks)
        return self

    def __repr__(self) -> str:
        return f"<VllmStatistics {self._now.num_steps} steps>"

    @property
    def now(self) -> CoreStatistics:
        return self._now

    def record(
        self,
        scheduler_stats: object | None = None,
        iteration_stats: object | None = None,
        mm_cache_stats: object | None = None,  # noqa: ARG002 - vLLM's call
        engine_idx: int = 0,  # noqa: ARG002 - as above
        **newer: object,  # noqa: ARG002 - and what later versions tell
    ) -> None:
        """After each of vLLM's steps."""
        before = self._now
        prefix_cache = getattr(scheduler_stats, "prefix_cache_stats", None)
        usage = float(getattr(scheduler_stats, "kv_cache_usage", 0.0) or 0.0)
        num_deferred = _int(scheduler_stats, "num_skipped_waiting_reqs")
        num_prompt = _int(iteration_stats, "num_prompt_tokens")
        num_generated = _int(iteration_stats, "num_generation_tokens")
        self._now = msgspec.structs.replace(
            before,
            num_running=_int(scheduler_stats, "num_running_reqs"),
            num_waiting=_int(scheduler_stats, "num_waiting_reqs") + num_deferred,
            num_waiting_deferred=num_deferred,
            num_free_blocks=self.num_blocks - round(self.num_blocks * usage),
            num_steps=before.num_steps + 1,
            num_step_tokens=num_prompt + num_generated,
            num_preemptions=before.num_preemptions + _int(iteration_stats, "num_preempted_reqs"),
            prompt_tokens=before.prompt_tokens + num_prompt,
            generation_tokens=before.generation_tokens + num_generated,
            prefix_cache_queries=before.prefix_cache_queries + _int(prefix_cache, "queries"),
            prefix_cache_hits=before.prefix_cache_hits + _int(prefix_cache, "hits"),
        )

    def log(self) -> None:
        """Nothing: it is read."""

    def log_engine_initialized(self) -> None:
        """Nothing to say."""

    def record_sleep_state(self, is_awake: int, level: int) -> None:
        """vLLM gives the same number twice: 0 for awake."""
        self._now = msgspec.structs.replace(self._now, sleep_level=level if is_awake else 0)


def _int(stats: object | None, name: str) -> int:
    return int(getattr(stats, name, 0) or 0)
