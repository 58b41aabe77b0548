"""What the server needs of an engine. `headrace.engine.AsyncLLMEngine` has it, and so has `headrace.testing`'s fake."""

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from typing import Protocol, TypeAlias, TypeVar

from prometheus_client import CollectorRegistry

from headrace.engine.embedding_outputs import EmbeddingRequestOutput
from headrace.engine.kv_events.config import KVEventsConfig
from headrace.engine.lora_request import LoRARequest
from headrace.engine.outputs import RequestOutput, TokensPrompt
from headrace.engine.pooling_params import PoolingParams
from headrace.engine.sampling_params import SamplingParams
from headrace.tokenization import TokenIds, TokenizationService


class ModelDescription(Protocol):
    """Of the engine's model configuration, what clients are told."""

    @property
    def model(self) -> str:
        """The directory that it was loaded from."""
        ...

    @property
    def served_model_name(self) -> str: ...

    @property
    def max_model_len(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...


EnginePrompt: TypeAlias = Sequence[int] | TokenIds | TokensPrompt
"""Token ids, with a salt of the prefix cache where there is one."""

OutputT_co = TypeVar("OutputT_co", covariant=True)


class OutputStream(Protocol[OutputT_co]):
    """The outputs of one request. Whoever does not iterate to its end closes it, which aborts the request."""

    def __aiter__(self) -> AsyncIterator[OutputT_co]: ...

    async def aclose(self) -> None: ...


class Engine(Protocol):
    """An engine that runs. Every error it raises is a HeadraceError."""

    @property
    def tokenization(self) -> TokenizationService: ...

    @property
    def registry(self) -> CollectorRegistry:
        """What /metrics shows."""
        ...

    async def add_request(
        self,
        request_id: str,
        prompt: EnginePrompt,
        params: SamplingParams,
        *,
        lora_request: LoRARequest | None = None,
        trace_headers: Mapping[str, str] | None = None,
        priority: int = 0,
    ) -> OutputStream[RequestOutput]:
        """The outputs of one request, the last one `finished`, once the request is checked and on its way to the core.
        Cancelled before, it leaves nothing behind."""
        ...

    def encode(
        self,
        prompt: EnginePrompt,
        pooling_params: PoolingParams,
        request_id: str,
        *,
        lora_request: LoRARequest | None = None,
        trace_headers: Mapping[str, str] | None = None,
        priority: int = 0,
    ) -> AsyncGenerator[EmbeddingRequestOutput, None]:
        """The prompt's vector, in one output. Closing the generator early aborts the request."""
        ...

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        """Load an adapter. Raises InvalidRequestError, saying why, when it cannot be used."""
        ...

    async def remove_lora(self, lora_id: int) -> bool:
        """Forget an adapter; requests that run finish with it first. False when it was not loaded."""
        ...

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End these requests; their consumers get a last output with finish reason "abort". Unknown ids are ignored."""
        ...

    async def check_health(self) -> None:
        """Raises EngineDeadError when the engine's core is dead or hung, EngineStalledError when it may be."""
        ...

    async def get_model_config(self) -> ModelDescription: ...

    async def get_kv_event_sources(self) -> Mapping[int, KVEventsConfig]:
        """Where each data-parallel rank publishes what its prefix cache holds; empty where none does."""
        ...

    async def sleep(self, level: int = 1) -> None:
        """Give memory back until `wake_up`. Raises InvalidRequestError for a level that there is not."""
        ...

    async def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Undo `sleep`, for these tags or altogether. Raises InvalidRequestError for an unknown tag."""
        ...

    async def is_sleeping(self) -> bool: ...

    async def reset_prefix_cache(self) -> bool:
        """Forget every cached prefix; False, and nothing forgotten, while requests hold blocks."""
        ...

    async def start_profile(self) -> None:
        """Raises SettingsError where the engine has nowhere to write a profile."""
        ...

    async def stop_profile(self) -> None: ...

    def default_sampling_params(self) -> SamplingParams:
        """The model's own defaults, which a request's fields replace one by one."""
        ...
