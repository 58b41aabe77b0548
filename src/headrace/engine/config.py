"""The engine's settings as an operator writes them (`EngineArgs`), and the frozen configs that its parts are given.

`EngineConfig` crosses to the core's process, so it encodes to JSON and back. Imports no torch: device and dtype stay
"auto" until the executor, which sees the hardware, resolves them.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from headrace.engine.model_config import DataType, ModelConfig, load_model_config
from headrace.errors import SettingsError
from headrace.units import NumBytes

Device: TypeAlias = Literal["auto", "cpu", "cuda"]
SchedulingPolicy: TypeAlias = Literal["fcfs", "priority"]
LoadFormat: TypeAlias = Literal["safetensors", "dummy"]

_MAX_SEED = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """The paged KV cache."""

    block_size: int
    kv_cache_memory_bytes: int | None
    enable_prefix_caching: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """What one step may hold, and who goes first."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    policy: SchedulingPolicy = "fcfs"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionConfig:
    """Where and how the model runs."""

    device: Device
    dtype: Literal["auto"] | DataType
    cpu_threads: int | None
    load_format: LoadFormat
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Everything that the engine's core needs to start."""

    model: ModelConfig
    cache: CacheConfig
    scheduler: SchedulerConfig
    execution: ExecutionConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineArgs:
    """Settings of one engine. Raises SettingsError, naming the field, for a value out of its range."""

    model: str
    """Directory of the model in Hugging Face's layout: config.json, safetensors, tokenizer files."""
    tokenizer: str | None = None
    """Directory or tokenizer.json to use instead of the model's own."""
    served_model_name: str | None = None
    """Name under which requests ask for the model; the directory's name by default."""
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    """Type of weights and KV cache. auto: float32 on a CPU, where bfloat16 linears are slower, else as stored."""
    seed: int = 0
    """Seed of the draws of requests that bring no seed of their own, and of dummy weights."""
    max_model_len: int | None = None
    """Most tokens of a request, prompt and answer together; by default what the model was made for."""
    max_num_seqs: int = 64
    """Most requests that run at once. One core gains little tokens/s beyond 64, while each request's own pace falls."""
    max_num_batched_tokens: int = 2048
    """Most tokens a step computes; longer prompts are prefilled in chunks, so that running answers keep their pace."""
    block_size: int = 16
    """Tokens per block of the KV cache, and so the grain at which prefixes are shared."""
    kv_cache_memory_bytes: NumBytes | None = None
    """Memory of the KV cache. By default what max_num_seqs whole contexts need, at most 256 MiB on a CPU and 4 GiB on
    CUDA, but never less than one whole context."""
    enable_prefix_caching: bool = True
    """Keep the blocks of finished requests for later ones that begin with the same tokens."""
    device: Device = "auto"
    """auto: CUDA where torch sees one, else the CPU."""
    cpu_threads: int | None = None
    """Threads of one model step on a CPU; torch's own choice, one per core, by default."""
    scheduling_policy: SchedulingPolicy = "fcfs"
    """fcfs: in order of arrival. priority: lower `priority` of a request first, then in order of arrival."""
    load_format: LoadFormat = "safetensors"
    """dummy: random weights of the right shapes, to measure speed without a checkpoint's files."""

    def __post_init__(self) -> None:
        _check_at_least("seed", self.seed, minimum=0)
        if self.seed > _MAX_SEED:
            raise SettingsError(f"seed is {self.seed}; it must be at most {_MAX_SEED}", param="seed")
        _check_at_least("max_model_len", self.max_model_len, minimum=2)
        _check_at_least("max_num_seqs", self.max_num_seqs, minimum=1)
        _check_at_least("block_size", self.block_size, minimum=1)
        _check_at_least("kv_cache_memory_bytes", self.kv_cache_memory_bytes, minimum=1)
        _check_at_least("cpu_threads", self.cpu_threads, minimum=1)
        _check_choice("dtype", self.dtype, choices=("auto", "float32", "float16", "bfloat16"))
        _check_choice("device", self.device, choices=("auto", "cpu", "cuda"))
        _check_choice("scheduling_policy", self.scheduling_policy, choices=("fcfs", "priority"))
        _check_choice("load_format", self.load_format, choices=("safetensors", "dummy"))
        if self.max_num_batched_tokens < self.max_num_seqs:
            message = (
                f"max_num_batched_tokens is {self.max_num_batched_tokens}, less than max_num_seqs, which is "
                f"{self.max_num_seqs}: every running request needs a token of each step"
            )
            raise SettingsError(message, param="max_num_batched_tokens")

    def create_engine_config(self) -> EngineConfig:
        """Read the model's JSON files and resolve what they decide (blocking, a few milliseconds).

        Raises SettingsError, naming the setting, for a directory that is no model and for what is not built.
        """
        model = load_model_config(
            self.model,
            tokenizer=self.tokenizer,
            served_model_name=self.served_model_name,
            max_model_len=self.max_model_len,
        )
        return EngineConfig(
            model=model,
            cache=CacheConfig(
                block_size=self.block_size,
                kv_cache_memory_bytes=self.kv_cache_memory_bytes,
                enable_prefix_caching=self.enable_prefix_caching,
            ),
            scheduler=SchedulerConfig(
                max_num_seqs=self.max_num_seqs,
                max_num_batched_tokens=self.max_num_batched_tokens,
                max_model_len=model.max_model_len,
                policy=self.scheduling_policy,
            ),
            execution=ExecutionConfig(
                device=self.device,
                dtype=self.dtype,
                cpu_threads=self.cpu_threads,
                load_format=self.load_format,
                seed=self.seed,
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncEngineArgs(EngineArgs):
    """Settings of an `AsyncLLMEngine`: the engine's, and what its front end logs."""

    disable_log_requests: bool = False
    """Do not log each request's arrival and end."""
    max_log_len: int | None = None
    """Most characters of a prompt in a log line; the whole prompt by default."""

    def __post_init__(self) -> None:
        EngineArgs.__post_init__(self)  # super() without arguments does not work in a slotted dataclass
        _check_at_least("max_log_len", self.max_log_len, minimum=0)


def _check_at_least(name: str, value: int | None, *, minimum: int) -> None:
    if value is not None and value < minimum:
        raise SettingsError(f"{name} is {value}; it must be at least {minimum}", param=name)


def _check_choice(name: str, value: str, *, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise SettingsError(f"{name} is {value!r}; it must be one of {', '.join(choices)}", param=name)
