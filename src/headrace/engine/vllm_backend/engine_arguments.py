"""Our engine settings as the arguments of vLLM's. Pure; a setting that vLLM cannot follow is refused by name."""

from dataclasses import fields

from headrace.engine.config import AsyncEngineArgs
from headrace.errors import SettingsError

_SAME = (
    "model",
    "tokenizer",
    "served_model_name",
    "dtype",
    "seed",
    "max_model_len",
    "max_num_seqs",
    "kv_cache_memory_bytes",
    "gpu_memory_utilization",
    "enable_prefix_caching",
    "prefix_caching_hash_algo",
    "enable_chunked_prefill",
    "max_num_queued_reqs",
    "max_num_queued_tokens",
    "scheduling_policy",
    "load_format",
    "enforce_eager",
    "tensor_parallel_size",
    "data_parallel_size",
)
"""Both have these, and mean the same by them."""

_UNLESS_DEFAULT = ("block_size", "max_num_batched_tokens")
"""Their best value depends on vLLM's own kernels; one that nobody chose is left to it."""

_LORA = ("max_loras", "max_lora_rank", "max_cpu_loras")

_OF_THE_FRONT_END = (
    "backend",
    "disable_log_requests",
    "enable_log_requests",
    "max_log_len",
    "disable_log_stats",
    "otlp_traces_endpoint",
    "enable_lora",
    "executor_backend",
    "worker_use_ray",
)
"""Ours whichever core computes, or translated by a rule of their own."""


def vllm_arguments(engine_args: AsyncEngineArgs) -> dict[str, object]:
    """Keyword arguments of vLLM's AsyncEngineArgs. Those that leave the choice to the engine are left out.

    Raises SettingsError, naming the first setting that has no counterpart there and was changed.
    """
    _refuse_others(engine_args)
    arguments = {name: getattr(engine_args, name) for name in _SAME}
    defaults = {field.name: field.default for field in fields(engine_args)}
    chosen = (name for name in _UNLESS_DEFAULT if getattr(engine_args, name) != defaults[name])
    arguments |= {name: getattr(engine_args, name) for name in chosen}
    if engine_args.enable_lora:
        arguments |= {"enable_lora": True, **{name: getattr(engine_args, name) for name in _LORA}}
    arguments["distributed_executor_backend"] = _executor(engine_args)
    arguments["enable_sleep_mode"] = True if engine_args.device == "cuda" else None
    return {name: value for name, value in arguments.items() if value is not None}


def _executor(engine_args: AsyncEngineArgs) -> str | None:
    if engine_args.worker_use_ray:
        return "ray"
    return {"auto": None, "local": "uni", "process": "mp", "ray": "ray"}[engine_args.executor_backend]


def _refuse_others(engine_args: AsyncEngineArgs) -> None:
    known = {*_SAME, *_UNLESS_DEFAULT, *_LORA, *_OF_THE_FRONT_END}
    for field in fields(engine_args):
        value = getattr(engine_args, field.name)
        if field.name in known or value == field.default:
            continue
        if field.name == "device" and value == "cuda":  # what vLLM's build is for
            continue
        message = f"{field.name} is {value!r}, which the backend 'vllm' cannot follow; leave it out"
        raise SettingsError(message, param=field.name)
