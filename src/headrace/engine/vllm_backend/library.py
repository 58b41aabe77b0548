"""vLLM's names that are used, gathered once, and what of its objects is relied on. The only file that imports vllm."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.errors import SettingsError


class VllmLogprob(Protocol):
    logprob: float
    rank: int | None


class VllmCompletion(Protocol):
    token_ids: Sequence[int]
    finish_reason: str | None
    stop_reason: int | str | None
    logprobs: Sequence[Mapping[int, VllmLogprob]] | None


class VllmOutput(Protocol):
    """`RequestOutput`, asked for in the kind DELTA."""

    outputs: Sequence[VllmCompletion]
    prompt_token_ids: Sequence[int] | None
    prompt_logprobs: Sequence[Mapping[int, VllmLogprob] | None] | None
    num_cached_tokens: int | None


class VllmPooled(Protocol):
    data: object
    """The vector, a tensor."""


class VllmPoolingOutput(Protocol):
    outputs: VllmPooled
    num_cached_tokens: int | None


class VllmEngine(Protocol):
    """What is used of `AsyncLLM`."""

    @property
    def errored(self) -> bool: ...

    def generate(
        self, prompt: object, sampling_params: object, request_id: str, *, lora_request: object, priority: int
    ) -> AsyncGenerator[VllmOutput, None]: ...

    def encode(
        self, prompt: object, pooling_params: object, request_id: str, lora_request: object, *, priority: int
    ) -> AsyncGenerator[VllmPoolingOutput, None]: ...

    async def abort(self, request_id: Sequence[str]) -> None: ...

    async def reset_prefix_cache(self) -> bool | None: ...

    async def sleep(self, level: int, mode: str) -> None: ...

    async def wake_up(self, tags: list[str] | None) -> object: ...

    async def is_sleeping(self) -> bool: ...

    async def start_profile(self) -> None: ...

    async def stop_profile(self) -> None: ...

    async def add_lora(self, lora_request: object) -> bool: ...

    async def remove_lora(self, lora_id: int) -> bool: ...

    async def list_loras(self) -> set[int]: ...

    async def pin_lora(self, lora_id: int) -> bool: ...

    async def collective_rpc(
        self,
        method: str | Callable[..., object],
        timeout: float | None,
        args: tuple[object, ...],
        kwargs: dict[str, object] | None,
    ) -> list[object]: ...

    def shutdown(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmLibrary:
    """Constructors, each called with keywords alone."""

    build_engine: Callable[[Mapping[str, object], Sequence[object]], VllmEngine]
    """`AsyncLLM` of the engine arguments and of factories of stat loggers. Blocks until the model is loaded."""
    sampling_params: Callable[..., object]
    pooling_params: Callable[..., object]
    structured_outputs: Callable[..., object]
    tokens_prompt: Callable[..., object]
    lora_request: Callable[..., object]
    delta: object
    """`RequestOutputKind.DELTA`."""
    dead_error: type[BaseException]
    """What it raises when its own core is gone."""


def load_library() -> VllmLibrary:
    """Import vLLM (seconds, blocking). Raises SettingsError, naming `backend`, when it is missing or too old."""
    try:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.inputs import TokensPrompt
        from vllm.lora.request import LoRARequest
        from vllm.pooling_params import PoolingParams
        from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams
        from vllm.v1.engine.async_llm import AsyncLLM
        from vllm.v1.engine.exceptions import EngineDeadError
    except ImportError as error:
        message = f"backend is 'vllm', but vLLM cannot be used: {error}; install headrace[vllm]"
        raise SettingsError(message, param="backend") from error

    def build_engine(arguments: Mapping[str, object], stat_loggers: Sequence[object]) -> VllmEngine:
        engine: VllmEngine = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments), stat_loggers=list(stat_loggers))
        return engine

    return VllmLibrary(
        build_engine=build_engine,
        sampling_params=SamplingParams,
        pooling_params=PoolingParams,
        structured_outputs=StructuredOutputsParams,
        tokens_prompt=TokensPrompt,
        lora_request=LoRARequest,
        delta=RequestOutputKind.DELTA,
        dead_error=EngineDeadError,
    )
