"""The engine's settings as an operator writes them (`EngineArgs`), and the frozen configs that its parts are given.

`EngineConfig` crosses to the core's process, so it encodes to JSON and back. Imports no torch: device and dtype stay
"auto" until the executor, which sees the hardware, resolves them.
"""

from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from headrace.engine.kv_events.config import KVEventsConfig, KVEventsPublisher, parse_kv_events_config
from headrace.engine.model_config import DataType, ModelConfig, load_model_config
from headrace.engine.parallel_config import ExecutorBackend, ExecutorKind, ParallelConfig, check_layer_shares
from headrace.engine.setting_types import check_types
from headrace.errors import SettingsError
from headrace.prefix_hash import DEFAULT_SEED, HashAlgorithm
from headrace.units import NumBytes, Seconds

Device: TypeAlias = Literal["auto", "cpu", "cuda"]
SchedulingPolicy: TypeAlias = Literal["fcfs", "priority"]
Backend: TypeAlias = Literal["headrace", "vllm"]
LoadFormat: TypeAlias = Literal["safetensors", "dummy"]
Quantization: TypeAlias = Literal["int8", "int8-weight-only"]
CpuKernelsChoice: TypeAlias = Literal["auto", "off"]

_MAX_SEED = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """The paged KV cache."""

    block_size: int
    kv_cache_memory_bytes: int | None
    enable_prefix_caching: bool
    gpu_memory_utilization: float | None = None
    prefix_caching_hash_algo: HashAlgorithm = "sha256"
    prefix_caching_hash_seed: str = DEFAULT_SEED


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """What one step may hold, and who goes first."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    policy: SchedulingPolicy = "fcfs"
    enable_chunked_prefill: bool = True
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionConfig:
    """Where and how the model runs."""

    device: Device
    dtype: Literal["auto"] | DataType
    cpu_threads: int | None
    load_format: LoadFormat
    seed: int
    quantization: Quantization | None = None
    cpu_kernels: CpuKernelsChoice = "auto"
    enforce_eager: bool = False
    profiler_dir: str | None = None
    profiler_max_steps: int = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class LoRAConfig:
    """Which adapters may be in use together; see `EngineArgs`."""

    max_loras: int
    max_lora_rank: int
    max_cpu_loras: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Everything that the engine's core needs to start."""

    model: ModelConfig
    cache: CacheConfig
    scheduler: SchedulerConfig
    execution: ExecutionConfig
    lora: LoRAConfig | None = None
    """None where adapters are off."""
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    kv_events: KVEventsConfig | None = None
    """None where no events are published."""

    def for_data_parallel_rank(self, rank: int) -> "EngineConfig":
        """The config of one of several cores."""
        return replace(
            self,
            parallel=replace(self.parallel, data_parallel_rank=rank),
            kv_events=self.kv_events.for_rank(rank) if self.kv_events is not None else None,
        )


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
    """Type of weights and KV cache. auto: as stored, but float32 on a CPU without our kernels, where others are slower,
    and for float16 on any CPU."""
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
    prefix_caching_hash_algo: HashAlgorithm = "sha256"
    """How blocks are named, in KV events too: sha256 hashes pickles, sha256_cbor canonical CBOR. Both are vLLM's."""
    prefix_caching_hash_seed: str | None = None
    """Text behind the name of every first block: what PYTHONHASHSEED is to vLLM; vLLM's own text by default."""
    enable_chunked_prefill: bool = True
    """Compute a long prompt in pieces. Without, max_num_batched_tokens must hold a whole context."""
    gpu_memory_utilization: float | None = None
    """On CUDA the share of the device's memory for weights, KV cache and working space together, instead of
    kv_cache_memory_bytes; 0 to 1."""
    enforce_eager: bool = False
    """Do not record CUDA graphs. Without, decode steps are replayed from them on CUDA, but for engines with LoRA or
    with tensor parallelism, which never do."""
    max_num_queued_reqs: int | None = None
    """Most requests that may wait in the core beyond those that find a seat at once; others are refused as overload."""
    max_num_queued_tokens: int | None = None
    """Most prompt tokens that may wait in the core; a request that finds so many waiting is refused as overload."""
    kv_events: bool = False
    """Publish which blocks the KV cache gains and loses, for routers that know prefixes; vLLM's wire form."""
    kv_events_publisher: KVEventsPublisher = "zmq"
    """null: make the events and drop them."""
    kv_events_endpoint: str = "tcp://*:5557"
    """A ZMQ address to bind (with * or ::, or inproc or ipc) or to connect to; port 0 lets the system choose. Each
    data-parallel rank takes the next port."""
    kv_events_replay_endpoint: str | None = None
    """A ZMQ address to bind, where subscribers ask for batches that they missed."""
    kv_events_topic: str = ""
    """The first part of every message."""
    kv_events_buffer_steps: int = 10_000
    """Batches kept for replay; there is at most one a step."""
    kv_events_hwm: int = 100_000
    """Batches that are kept for a slow subscriber before it misses some."""
    kv_events_int_hashes: bool = True
    """Name blocks by 64-bit numbers, as vLLM does by default; without, by whole digests."""
    kv_events_config: str | None = None
    """All of that as vLLM's JSON, instead of the settings above."""
    device: Device = "auto"
    """auto: CUDA where torch sees one, else the CPU."""
    cpu_threads: int | None = None
    """Threads of one model step on a CPU; torch's own choice, one per core, by default."""
    scheduling_policy: SchedulingPolicy = "fcfs"
    """fcfs: in order of arrival. priority: lower `priority` of a request first, then in order of arrival."""
    load_format: LoadFormat = "safetensors"
    """dummy: random weights of the right shapes, to measure speed without a checkpoint's files."""
    quantization: Quantization | None = None
    """int8: weights and, as they come, activations in 8 bits; half the memory of bfloat16 and about twice its speed on
    a CPU. int8-weight-only: activations stay at 16 bits; as small, and as fast for few requests at once. Either needs
    our CPU kernels to be fast. docs/cpu_kernels.md states the accuracy."""
    cpu_kernels: CpuKernelsChoice = "auto"
    """auto: our own kernels on a CPU, where they were built and it has AVX2. off: plain torch."""
    profiler_dir: str | None = None
    """Directory for the traces of `start_profile`, which is refused without it."""
    profiler_max_steps: int = 500
    """Steps after which a profile ends by itself: its events are kept in memory until then."""
    enable_lora: bool = False
    """Let requests name a LoRA adapter in PEFT's format."""
    max_loras: int = 4
    """Most different adapters that requests in one step use, and that are kept on the device. Others wait."""
    max_lora_rank: int = 64
    """Highest rank of an adapter; memory is taken by the adapters that come, not in advance."""
    max_cpu_loras: int | None = None
    """Most adapters kept in host memory, least recently used ones go first; twice max_loras by default. As many as it
    exceeds max_loras by can be pinned."""

    tensor_parallel_size: int = 1
    """Workers that share the model: each holds a part of every layer's weights and of the KV cache, and the memory
    settings hold for each. On CUDA each takes a device."""
    data_parallel_size: int = 1
    """Whole copies of the engine's core behind one front end; a request goes to the one with the least to do."""
    executor_backend: ExecutorBackend = "auto"
    """What runs the workers. local: the core's own process, for one. process: child processes. ray: Ray actors. auto:
    local for one worker, process for several."""
    ray_address: str | None = None
    """The Ray cluster to use, as `ray.init` takes it; by default the one that Ray finds, else one that it starts."""
    worker_timeout_s: Seconds = 60.0
    """Workers of their own (executor_backend process or ray) that do not finish a step within this time are hung, and
    the engine is dead."""

    def __post_init__(self) -> None:
        check_types(self)
        if self.served_model_name == "":
            message = "served_model_name is empty; leave it out for the name of the model's directory"
            raise SettingsError(message, param="served_model_name")
        _check_at_least("seed", self.seed, minimum=0)
        if self.seed > _MAX_SEED:
            raise SettingsError(f"seed is {self.seed}; it must be at most {_MAX_SEED}", param="seed")
        _check_at_least("max_model_len", self.max_model_len, minimum=2)
        _check_at_least("max_num_seqs", self.max_num_seqs, minimum=1)
        _check_at_least("block_size", self.block_size, minimum=1)
        _check_at_least("kv_cache_memory_bytes", self.kv_cache_memory_bytes, minimum=1)
        _check_at_least("cpu_threads", self.cpu_threads, minimum=1)
        self._check_memory()
        _check_choice("dtype", self.dtype, choices=("auto", "float32", "float16", "bfloat16"))
        _check_choice("device", self.device, choices=("auto", "cpu", "cuda"))
        _check_choice("scheduling_policy", self.scheduling_policy, choices=("fcfs", "priority"))
        _check_choice("load_format", self.load_format, choices=("safetensors", "dummy"))
        if self.quantization is not None:
            _check_choice("quantization", self.quantization, choices=("int8", "int8-weight-only"))
        _check_choice("cpu_kernels", self.cpu_kernels, choices=("auto", "off"))
        _check_at_least("max_loras", self.max_loras, minimum=1)
        _check_at_least("max_lora_rank", self.max_lora_rank, minimum=1)
        if self.max_cpu_loras is not None and self.max_cpu_loras < self.max_loras:
            message = f"max_cpu_loras is {self.max_cpu_loras}, less than max_loras, which is {self.max_loras}; raise it"
            raise SettingsError(message, param="max_cpu_loras")
        self._check_parallel()
        _check_choice("prefix_caching_hash_algo", self.prefix_caching_hash_algo, choices=("sha256", "sha256_cbor"))
        _check_at_least("max_num_queued_reqs", self.max_num_queued_reqs, minimum=0)
        _check_at_least("max_num_queued_tokens", self.max_num_queued_tokens, minimum=1)
        _check_at_least("profiler_max_steps", self.profiler_max_steps, minimum=1)
        self._kv_events_config()
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
            takes_any=self._takes_any_model,
        )
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < model.max_model_len:
            message = (
                f"max_num_batched_tokens is {self.max_num_batched_tokens} and a context {model.max_model_len}: without "
                f"enable_chunked_prefill a step must hold a whole prompt; raise it, or lower max_model_len"
            )
            raise SettingsError(message, param="max_num_batched_tokens")
        return EngineConfig(
            model=model,
            cache=CacheConfig(
                block_size=self.block_size,
                kv_cache_memory_bytes=self.kv_cache_memory_bytes,
                enable_prefix_caching=self.enable_prefix_caching,
                gpu_memory_utilization=self.gpu_memory_utilization,
                prefix_caching_hash_algo=self.prefix_caching_hash_algo,
                prefix_caching_hash_seed=self.prefix_caching_hash_seed or DEFAULT_SEED,
            ),
            scheduler=SchedulerConfig(
                max_num_seqs=self.max_num_seqs,
                max_num_batched_tokens=self.max_num_batched_tokens,
                max_model_len=model.max_model_len,
                policy=self.scheduling_policy,
                enable_chunked_prefill=self.enable_chunked_prefill,
                max_num_queued_reqs=self.max_num_queued_reqs,
                max_num_queued_tokens=self.max_num_queued_tokens,
            ),
            execution=ExecutionConfig(
                device=self.device,
                dtype=self.dtype,
                cpu_threads=self.cpu_threads,
                load_format=self.load_format,
                seed=self.seed,
                quantization=self.quantization,
                cpu_kernels=self.cpu_kernels,
                enforce_eager=self.enforce_eager,
                profiler_dir=self.profiler_dir,
                profiler_max_steps=self.profiler_max_steps,
            ),
            kv_events=self._kv_events_config(),
            lora=self._lora_config(),
            parallel=self._parallel_config(model),
        )

    @property
    def _takes_any_model(self) -> bool:
        """Whether something else than our own modules runs the model."""
        return False

    def _kv_events_config(self) -> KVEventsConfig | None:
        if self.kv_events_config is not None:
            if self.kv_events:
                message = "kv_events and kv_events_config are both given; give one of them"
                raise SettingsError(message, param="kv_events_config")
            return self._checked_kv_events(parse_kv_events_config(self.kv_events_config))
        if not self.kv_events:
            return None
        config = KVEventsConfig(
            publisher=self.kv_events_publisher,
            endpoint=self.kv_events_endpoint,
            replay_endpoint=self.kv_events_replay_endpoint,
            topic=self.kv_events_topic,
            buffer_steps=self.kv_events_buffer_steps,
            hwm=self.kv_events_hwm,
            use_int_hashes=self.kv_events_int_hashes,
        )
        return self._checked_kv_events(config)

    def _checked_kv_events(self, config: KVEventsConfig | None) -> KVEventsConfig | None:
        if config is not None and not self.enable_prefix_caching:
            raise SettingsError("kv_events tells of cached prefixes; it needs enable_prefix_caching", param="kv_events")
        return config

    def _check_memory(self) -> None:
        share = self.gpu_memory_utilization
        if share is None:
            return
        if not 0 < share <= 1:
            message = f"gpu_memory_utilization is {share}; it must be above 0 and at most 1"
            raise SettingsError(message, param="gpu_memory_utilization")
        if self.kv_cache_memory_bytes is not None:
            message = "kv_cache_memory_bytes and gpu_memory_utilization both size the KV cache; drop one of them"
            raise SettingsError(message, param="gpu_memory_utilization")

    def _check_parallel(self) -> None:
        _check_at_least("tensor_parallel_size", self.tensor_parallel_size, minimum=1)
        _check_at_least("data_parallel_size", self.data_parallel_size, minimum=1)
        _check_choice("executor_backend", self.executor_backend, choices=("auto", "local", "process", "ray"))
        if self.executor_backend == "local" and self.tensor_parallel_size > 1:
            message = (
                f"executor_backend is 'local', which runs one worker, but tensor_parallel_size is "
                f"{self.tensor_parallel_size}; use process or ray"
            )
            raise SettingsError(message, param="executor_backend")
        if not self.worker_timeout_s > 0:
            message = f"worker_timeout_s is {self.worker_timeout_s}; it must be above 0"
            raise SettingsError(message, param="worker_timeout_s")

    def _parallel_config(self, model: ModelConfig) -> ParallelConfig:
        check_layer_shares(model, size=self.tensor_parallel_size)
        auto: ExecutorKind = "local" if self.tensor_parallel_size == 1 else "process"
        return ParallelConfig(
            tensor_parallel_size=self.tensor_parallel_size,
            data_parallel_size=self.data_parallel_size,
            executor=auto if self.executor_backend == "auto" else self.executor_backend,
            ray_address=self.ray_address,
            worker_timeout_s=self.worker_timeout_s,
        )

    def _lora_config(self) -> LoRAConfig | None:
        if not self.enable_lora:
            return None
        return LoRAConfig(
            max_loras=self.max_loras,
            max_lora_rank=self.max_lora_rank,
            max_cpu_loras=self.max_cpu_loras if self.max_cpu_loras is not None else 2 * self.max_loras,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncEngineArgs(EngineArgs):
    """Settings of an `AsyncLLMEngine`: the engine's, and what its front end logs."""

    disable_log_requests: bool = False
    """Do not log each request's arrival and end."""
    max_log_len: int | None = None
    """Most characters of a prompt in a log line; the whole prompt by default."""
    worker_use_ray: bool = False
    """The workers are Ray actors: executor_backend=ray."""
    engine_use_ray: bool = False
    """The engine's core is a Ray actor, which may run on another machine of the cluster."""
    backend: Backend = "headrace"
    """What computes: our own core, or an installed vLLM behind our front end (the extra vllm)."""
    enable_log_requests: bool | None = None
    """The newer name: True or False decide instead of `disable_log_requests`."""
    disable_log_stats: bool = False
    """Do not log a line of statistics every `stats_interval_s`."""
    otlp_traces_endpoint: str | None = None
    """Where a span of each request is sent by OTLP over HTTP, for instance http://localhost:4318/v1/traces."""

    def __post_init__(self) -> None:
        EngineArgs.__post_init__(self)  # super() without arguments does not work in a slotted dataclass
        _check_at_least("max_log_len", self.max_log_len, minimum=0)
        _check_choice("backend", self.backend, choices=("headrace", "vllm"))
        if self.worker_use_ray and self.executor_backend not in ("auto", "ray"):
            message = f"worker_use_ray asks for Ray actors, but executor_backend is {self.executor_backend!r}; drop one"
            raise SettingsError(message, param="worker_use_ray")

    @property
    def _takes_any_model(self) -> bool:
        return self.backend == "vllm"

    @property
    def logs_requests(self) -> bool:
        return not self.disable_log_requests if self.enable_log_requests is None else self.enable_log_requests

    def _parallel_config(self, model: ModelConfig) -> ParallelConfig:
        if self.backend == "vllm":
            return ParallelConfig(
                tensor_parallel_size=self.tensor_parallel_size, data_parallel_size=self.data_parallel_size
            )
        config = EngineArgs._parallel_config(self, model)
        executor: ExecutorKind = "ray" if self.worker_use_ray else config.executor
        return replace(config, executor=executor, engine_use_ray=self.engine_use_ray)


def _check_at_least(name: str, value: int | None, *, minimum: int) -> None:
    if value is not None and value < minimum:
        raise SettingsError(f"{name} is {value}; it must be at least {minimum}", param=name)


def _check_choice(name: str, value: str, *, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise SettingsError(f"{name} is {value!r}; it must be one of {', '.join(choices)}", param=name)
