"""The engine's configuration as its API tells it: frozen objects, under vLLM's attribute names."""

from dataclasses import dataclass

from headrace.engine.config import CacheConfig, EngineConfig, ExecutionConfig, LoRAConfig, SchedulerConfig
from headrace.engine.kv_events.config import KVEventsConfig
from headrace.engine.model_config import ModelConfig
from headrace.engine.parallel_config import ParallelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingConfig:
    """How answers that must have a form are guided to it."""

    backend: str = "llguidance"
    """The library that compiles `structured_outputs`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmConfig:
    """Everything at once, as `get_vllm_config` gives it."""

    model_config: ModelConfig
    cache_config: CacheConfig
    scheduler_config: SchedulerConfig
    parallel_config: ParallelConfig
    execution_config: ExecutionConfig
    """Device, type of the weights, threads, seed."""
    decoding_config: DecodingConfig
    lora_config: LoRAConfig | None
    kv_events_config: KVEventsConfig | None


def vllm_config(config: EngineConfig) -> VllmConfig:
    return VllmConfig(
        model_config=config.model,
        cache_config=config.cache,
        scheduler_config=config.scheduler,
        parallel_config=config.parallel,
        execution_config=config.execution,
        decoding_config=DecodingConfig(),
        lora_config=config.lora,
        kv_events_config=config.kv_events,
    )
