"""One model with its KV cache on one device: what every executor runs, one of it or several, here or elsewhere."""

from collections.abc import Callable, Mapping, Sequence

import torch

from headrace.engine.config import EngineConfig
from headrace.engine.executor.memory import num_kv_blocks
from headrace.engine.models.load import load_model
from headrace.engine.runner.model_runner import ModelRunner
from headrace.engine.runner.paged_cache import PagedKVCache
from headrace.engine.step_plan import StepPlan, StepResult
from headrace.errors import SettingsError, UnsupportedError

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class Worker:
    """Loads with `start`, then runs plans. Sets torch's thread count for the whole process when `cpu_threads` is given.

    Any public method can be called on all workers of an engine by `AsyncLLMEngine.collective_rpc`.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._runner: ModelRunner | None = None

    def __repr__(self) -> str:
        return f"Worker({self._config.model.served_model_name!r}, {self._runner!r})"

    @property
    def runner(self) -> ModelRunner:
        assert self._runner is not None, "start() comes first"
        return self._runner

    def start(self) -> int:
        """See `Executor.start`."""
        execution, model_config = self._config.execution, self._config.model
        if execution.cpu_threads is not None:
            torch.set_num_threads(execution.cpu_threads)
        device = _resolve_device(execution.device)
        dtype = _resolve_dtype(execution.dtype, checkpoint=model_config.checkpoint_dtype, device=device)
        num_blocks = num_kv_blocks(self._config, bytes_per_value=dtype.itemsize, is_cpu=device.type == "cpu")
        model = load_model(
            model_config, load_format=execution.load_format, device=device, dtype=dtype, seed=execution.seed
        )
        cache = PagedKVCache(
            model_config,
            num_blocks=num_blocks,
            block_size=self._config.cache.block_size,
            device=device,
            dtype=dtype,
        )
        self._runner = ModelRunner(
            model,
            cache,
            max_num_seqs=self._config.scheduler.max_num_seqs,
            max_model_len=model_config.max_model_len,
            dtype=dtype,
        )
        self._runner.warm_up()
        return num_blocks

    def execute(self, plan: StepPlan) -> StepResult:
        """See `Executor.execute`."""
        return self.runner.run(plan)

    def call(
        self,
        method: str | Callable[..., object],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """A public method by its name, or a function that is given this worker first. Raises what it raises."""
        if not isinstance(method, str):
            return method(self, *args, **(kwargs or {}))
        func = None if method.startswith("_") else getattr(self, method, None)
        if not callable(func):
            raise UnsupportedError(f"a worker has no method {method!r}", param="method")
        return func(*args, **(kwargs or {}))


def _resolve_device(wanted: str) -> torch.device:
    if wanted == "cuda" and not torch.cuda.is_available():
        raise SettingsError("device is 'cuda', but torch sees no CUDA device; use device=cpu or auto", param="device")
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(wanted)


def _resolve_dtype(wanted: str, *, checkpoint: str, device: torch.device) -> torch.dtype:
    if wanted == "auto":
        return torch.float32 if device.type == "cpu" else _DTYPES[checkpoint]
    return _DTYPES[wanted]
