"""What the server needs of an engine. `headrace.engine.AsyncLLMEngine` has it, and so has `headrace.testing`'s fake."""

from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Protocol

from headrace.engine.outputs import RequestOutput
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


class EngineNumbers(Protocol):
    """Of the engine's statistics, what /metrics shows. Counters count from the engine's start."""

    @property
    def num_running(self) -> int: ...

    @property
    def num_waiting(self) -> int: ...

    @property
    def kv_cache_usage(self) -> float:
        """Share of the KV cache's blocks that requests hold, 0 to 1."""
        ...

    @property
    def num_preemptions(self) -> int: ...

    @property
    def prefix_cache_queries(self) -> int: ...

    @property
    def prefix_cache_hits(self) -> int:
        """Prompt tokens found in the prefix cache, of those looked up."""
        ...


class Engine(Protocol):
    """An engine that runs. Every error it raises is a HeadraceError."""

    @property
    def tokenization(self) -> TokenizationService: ...

    def generate(
        self,
        prompt: Sequence[int] | TokenIds,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
    ) -> AsyncGenerator[RequestOutput, None]:
        """The outputs of one request, the last one `finished`. Closing the generator early aborts the request."""
        ...

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End these requests; their consumers get a last output with finish reason "abort". Unknown ids are ignored."""
        ...

    async def check_health(self) -> None:
        """Raises EngineDeadError when the engine's core is dead or hung."""
        ...

    async def get_model_config(self) -> ModelDescription: ...

    def default_sampling_params(self) -> SamplingParams:
        """The model's own defaults, which a request's fields replace one by one."""
        ...

    def statistics(self) -> EngineNumbers: ...
