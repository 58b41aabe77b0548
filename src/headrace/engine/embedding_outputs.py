"""What a caller of `encode` gets: the vector of a prompt, under vLLM's field names."""

from dataclasses import dataclass

from headrace.engine.outputs import RequestMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingOutput:
    """One vector, as the request's pooling and `dimensions` ask for it."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        """How many numbers it has."""
        return len(self.embedding)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingRequestOutput:
    """The one output of an embedding request; `outputs` is None where it was aborted."""

    request_id: str
    outputs: EmbeddingOutput | None
    prompt_token_ids: list[int]
    """Empty when aborted before tokenization."""
    finished: bool
    num_cached_tokens: int
    """Prompt tokens whose keys and values came from the prefix cache."""
    metrics: RequestMetrics
