"""One model with its KV cache on one device: what every executor runs, one of it or several, here or elsewhere."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import torch

from headrace.engine.config import EngineConfig
from headrace.engine.core.step_plan import StepPlan, StepResult
from headrace.engine.executor.memory import DeviceMemory, num_kv_blocks
from headrace.engine.executor.sleeping import FileSignature, check_unchanged, file_signature, release_memory
from headrace.engine.executor.step_profiler import StepProfiler
from headrace.engine.kernels.library import CpuKernels, open_kernels
from headrace.engine.kernels.memory import Arena
from headrace.engine.kernels.paged_attention import KernelKVCache, cache_fits_kernels
from headrace.engine.lora.adapted_layers import AdaptedLayers
from headrace.engine.lora.worker_adapters import WorkerAdapters
from headrace.engine.lora_request import LoRARequest
from headrace.engine.model_config import ModelConfig
from headrace.engine.models.build import Parallel
from headrace.engine.models.decoder import CausalModel
from headrace.engine.models.load import load_model
from headrace.engine.models.products import ProductMaker
from headrace.engine.parallel_config import layer_share, share_of_model
from headrace.engine.runner.cuda_graphs import CudaGraphRecorder
from headrace.engine.runner.make_cache import make_kv_cache
from headrace.engine.runner.model_runner import ModelRunner
from headrace.engine.runner.paged_cache import PagedKVCache
from headrace.engine.runner.static_decode import Record
from headrace.errors import EngineError, SettingsError, UnsupportedError

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}

JoinGroup: TypeAlias = Callable[[torch.device], Parallel]


class Worker:
    """Loads with `start`, then runs plans. Sets torch's thread count for the whole process when `cpu_threads` is given.

    Any public method can be called on all workers of an engine by `AsyncLLMEngine.collective_rpc`.
    """

    def __init__(self, config: EngineConfig, *, join_group: JoinGroup | None = None, device_index: int = 0) -> None:
        """`join_group` meets the other workers that share the model, if there are any; `device_index` is of CUDA."""
        self._config = config
        self._join_group = join_group
        self._device_index = device_index
        self._parallel: Parallel | None = None
        self._device = torch.device("cpu")
        self._dtype = torch.float32
        self._num_blocks = 0
        self._model: CausalModel | None = None
        self._kernels: CpuKernels | None = None
        self._cache: PagedKVCache | KernelKVCache | None = None
        self._runner: ModelRunner | None = None
        self._weights_before: FileSignature | None = None
        self._profiler = StepProfiler(
            config.execution.profiler_dir,
            name=f"{Path(config.model.served_model_name).name}-worker{device_index}",
            max_steps=config.execution.profiler_max_steps,
        )
        self._adapters: WorkerAdapters | None = None

    def __repr__(self) -> str:
        return f"Worker({self._config.model.served_model_name!r}, {self._runner!r})"

    @property
    def runner(self) -> ModelRunner:
        assert self._runner is not None, "start() comes first, and wake_up() after sleep()"
        return self._runner

    def start(self) -> int:
        """See `Executor.start`."""
        execution = self._config.execution
        torch.set_num_threads(_num_threads(self._config))
        self._device = _resolve_device(execution.device, index=self._device_index)
        if self._join_group is not None:
            self._parallel = self._join_group(self._device)
        self._kernels = self._open_kernels(self._device)
        self._dtype = _resolve_dtype(
            execution.dtype,
            checkpoint=self._config.model.checkpoint_dtype,
            device=self._device,
            has_kernels=self._kernels is not None and self._fits_kernels,
        )
        own_config = replace(self._config, model=self._own_model())
        self._num_blocks = num_kv_blocks(
            own_config,
            bytes_per_value=self._dtype.itemsize,
            is_cpu=self._device.type == "cpu",
            device_memory=_device_memory(self._device),
        )
        if self._parallel is not None:
            self._num_blocks = self._parallel.least(self._num_blocks)
        self._load_weights()
        self._make_cache()
        self._make_runner()
        return self._num_blocks

    def _load_weights(self) -> None:
        layers = self._adapted_layers() if self._config.lora is not None else None
        self._model = load_model(
            self._config.model,
            load_format=self._config.execution.load_format,
            device=self._device,
            dtype=self._dtype,
            seed=self._config.execution.seed,
            make_product=ProductMaker(kernels=self._kernels, quantization=self._config.execution.quantization),
            adapters=layers,
            parallel=self._parallel,
        )
        if self._config.lora is None or layers is None:
            return
        if self._adapters is None:
            self._adapters = WorkerAdapters(
                self._config.lora,
                layers,
                device=self._device,
                dtype=self._dtype if self._kernels is None else torch.float32,
                parallel=self._parallel,
            )
        else:
            self._adapters.move_to(layers)

    def _adapted_layers(self) -> AdaptedLayers:
        """Adapters come and go one by one, so each packed weight has memory of its own."""
        make_product = ProductMaker(kernels=self._kernels, arena=Arena(chunk_bytes=0))
        return AdaptedLayers(device=self._device, make_product=make_product)

    def _make_cache(self) -> None:
        self._cache = make_kv_cache(
            self._own_model(),
            num_blocks=self._num_blocks,
            block_size=self._config.cache.block_size,
            device=self._device,
            dtype=self._dtype,
            kernels=self._kernels,
        )

    def _make_runner(self) -> None:
        assert self._model is not None
        assert self._cache is not None
        self._runner = ModelRunner(
            self._model,
            self._cache,
            max_num_seqs=self._config.scheduler.max_num_seqs,
            max_model_len=self._config.model.max_model_len,
            dtype=self._dtype,
            adapters=self._adapters,
            record=self._recorder(),
        )
        self._runner.warm_up()

    def execute(self, plan: StepPlan) -> StepResult:
        """See `Executor.execute`."""
        result = self.runner.run(plan)
        self._profiler.note_step()
        return result

    def follow(self, plan: StepPlan, drawn: Mapping[str, int]) -> None:
        """Run one step where the group's first worker draws; `drawn` are the tokens that it drew the step before."""
        self.runner.follow(plan, drawn)
        self._profiler.note_step()

    def sleep(self, level: int) -> None:
        """Give up the KV cache and the weights, when no request runs. `wake_up` reads the weights again: after level 1
        it refuses if their files have changed meanwhile, after level 2 it takes what is there then."""
        directory = Path(self._config.model.model)
        if level == 1 and self._model is not None:
            self._weights_before = file_signature(directory)
        elif level > 1:
            self._weights_before = None
        self._runner = self._model = self._cache = None
        release_memory(self._device)

    def wake_up(self, tags: Sequence[str]) -> None:
        """Bring `weights`, `kv_cache` or both back; with the second of them steps can run again. Raises EngineError."""
        if "weights" in tags and self._model is None:
            if self._weights_before is not None:
                check_unchanged(Path(self._config.model.model), before=self._weights_before)
            self._load_weights()
        if "kv_cache" in tags and self._cache is None:
            self._make_cache()
        if self._runner is None and self._model is not None and self._cache is not None:
            self._make_runner()

    def start_profile(self) -> None:
        """Record the steps from now on. Raises UnsupportedError where `profiler_dir` is not set."""
        self._profiler.start()

    def stop_profile(self) -> str:
        """Write the trace of the steps since `start_profile`; its path on the worker's machine."""
        return self._profiler.stop()

    def close(self) -> None:
        """Leave the group. Nothing may be called after it."""
        if self._parallel is not None:
            self._parallel.close()

    def add_lora(self, lora: LoRARequest) -> bool:
        """Load an adapter. False if it was loaded. Raises InvalidRequestError, saying why, if it cannot be used."""
        return self._loras.add(lora)

    def remove_lora(self, lora_int_id: int) -> bool:
        """Forget an adapter; requests that run finish with it first. False if it is not loaded."""
        return self._loras.remove(lora_int_id)

    def pin_lora(self, lora_int_id: int) -> bool:
        """Keep an adapter loaded until it is removed. False if it is not loaded; OverloadedError for one too many."""
        return self._loras.pin(lora_int_id)

    def list_loras(self) -> list[int]:
        """Ids of the loaded adapters, in order."""
        return self._loras.listed()

    @property
    def _loras(self) -> WorkerAdapters:
        if self._adapters is None:
            raise UnsupportedError("LoRA adapters are off in this engine; set enable_lora", param="enable_lora")
        return self._adapters

    def call(
        self,
        method: str | Callable[..., object],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """A public method by its name, or a function that is given this worker first. Raises what it raises, and
        EngineError where it would end the process."""
        if not isinstance(method, str):
            try:
                return method(self, *args, **(kwargs or {}))
            except SystemExit as error:
                name = getattr(method, "__qualname__", repr(method))
                raise EngineError(f"{name} called sys.exit({error.code!r}); return instead") from error
        func = None if method.startswith("_") else getattr(self, method, None)
        if not callable(func):
            raise UnsupportedError(f"a worker has no method {method!r}", param="method")
        return func(*args, **(kwargs or {}))

    def _recorder(self) -> Record | None:
        """Graphs of one device's kernels; what workers say to each other between layers stays out of them."""
        is_eager = self._config.execution.enforce_eager or self._parallel is not None
        return None if is_eager or self._device.type != "cuda" else CudaGraphRecorder()

    def _open_kernels(self, device: torch.device) -> CpuKernels | None:
        if device.type != "cpu" or self._config.execution.cpu_kernels == "off":
            return None
        return open_kernels(num_threads=torch.get_num_threads())

    @property
    def _fits_kernels(self) -> bool:
        """Whether they can attend to the checkpoint's own type; else plain torch attends, best in float32."""
        model = self._config.model
        dtype = _DTYPES[model.checkpoint_dtype]
        return cache_fits_kernels(model, block_size=self._config.cache.block_size, dtype=dtype)

    def _own_model(self) -> ModelConfig:
        """With the heads that this worker holds."""
        if self._parallel is None:
            return self._config.model
        share = layer_share(self._config.model, rank=self._parallel.rank, size=self._parallel.size)
        return share_of_model(self._config.model, share)


def _num_threads(config: EngineConfig) -> int:
    """As asked for; else the machine's cores are shared by the engine's workers, who compute at the same time."""
    if config.execution.cpu_threads is not None:
        return config.execution.cpu_threads
    return max(1, torch.get_num_threads() // config.parallel.num_workers)


def _device_memory(device: torch.device) -> DeviceMemory | None:
    """None on a CPU."""
    if device.type != "cuda":
        return None
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    return DeviceMemory(total_bytes=total_bytes, used_bytes=total_bytes - free_bytes)


def _resolve_device(wanted: str, *, index: int) -> torch.device:
    num_devices = torch.cuda.device_count() if wanted != "cpu" and torch.cuda.is_available() else 0
    if wanted == "cpu" or (wanted == "auto" and num_devices == 0):
        return torch.device("cpu")
    if num_devices == 0:
        raise SettingsError("device is 'cuda', but torch sees no CUDA device; use device=cpu or auto", param="device")
    if index >= num_devices:
        message = (
            f"every worker needs a CUDA device of its own, but torch sees {num_devices}, too few for worker {index}"
        )
        raise SettingsError(message, param="tensor_parallel_size")
    return torch.device("cuda", index)


def _resolve_dtype(wanted: str, *, checkpoint: str, device: torch.device, has_kernels: bool) -> torch.dtype:
    if wanted != "auto":
        return _DTYPES[wanted]
    is_fast = device.type != "cpu" or (has_kernels and checkpoint == "bfloat16")
    return _DTYPES[checkpoint] if is_fast else torch.float32
