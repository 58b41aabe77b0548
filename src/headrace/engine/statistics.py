"""What an engine reports of itself."""

from dataclasses import dataclass

from headrace.engine.wire.messages import CoreStatistics


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatistics:
    """A snapshot: the core's as of its last message, the front end's as of now. Counters count from the start."""

    num_unfinished: int
    """Requests in the front end that have not ended, those being tokenized among them."""
    num_running: int
    num_waiting: int
    """Requests in the core."""
    num_blocks: int
    num_free_blocks: int
    num_steps: int
    num_preemptions: int
    prompt_tokens: int
    generation_tokens: int
    prefix_cache_queries: int
    prefix_cache_hits: int
    """Prompt tokens looked up in the prefix cache, and those found there."""
    num_step_tokens: int
    """Tokens that the core's last step computed; 0 where none ran since the message before."""
    num_waiting_deferred: int
    """Of `num_waiting`, those that wait for something else than room: for the engine to wake up, for instance."""
    num_refused: int
    """Requests that the core refused because too many waited."""
    sleep_level: int
    """0 when awake."""

    @property
    def kv_cache_usage(self) -> float:
        """Share of the KV cache's blocks that requests hold, 0 to 1."""
        return 1.0 - self.num_free_blocks / self.num_blocks if self.num_blocks else 0.0


def engine_statistics(core: CoreStatistics, *, num_unfinished: int) -> EngineStatistics:
    return EngineStatistics(
        num_unfinished=num_unfinished,
        num_running=core.num_running,
        num_waiting=core.num_waiting,
        num_blocks=core.num_blocks,
        num_free_blocks=core.num_free_blocks,
        num_steps=core.num_steps,
        num_preemptions=core.num_preemptions,
        prompt_tokens=core.prompt_tokens,
        generation_tokens=core.generation_tokens,
        prefix_cache_queries=core.prefix_cache_queries,
        prefix_cache_hits=core.prefix_cache_hits,
        num_step_tokens=core.num_step_tokens,
        num_waiting_deferred=core.num_waiting_deferred,
        num_refused=core.num_refused,
        sleep_level=core.sleep_level,
    )
