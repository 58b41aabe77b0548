"""What a caller of the engine gives and gets: prompts as token ids, and the outputs of a request as it grows.

Field names follow vLLM's. This module knows neither the core nor how outputs are made.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NotRequired, TypeAlias, TypedDict

import numpy as np
import numpy.typing as npt

FinishReason: TypeAlias = Literal["stop", "length", "abort"]
"""Why a completion ended: a stop token or string, its `max_tokens` or the context's end, or somebody's abort."""


class RequestOutputKind(enum.Enum):
    """What each output of a request carries."""

    CUMULATIVE = 0
    """Everything generated so far. A late consumer skips outputs, never text."""
    DELTA = 1
    """What is new since the output before. A late consumer gets fewer, larger ones."""
    FINAL_ONLY = 2
    """One output, when the request has finished."""


class TextPrompt(TypedDict):
    """A prompt as text, with what cannot be said in the text."""

    prompt: str
    cache_salt: NotRequired[str]
    """As in `TokensPrompt`."""


class TokensPrompt(TypedDict):
    """A prompt that is tokenized already. `prompt` is its text, only to be repeated in the outputs."""

    prompt_token_ids: Sequence[int] | npt.NDArray[np.uint32]
    prompt: NotRequired[str]
    cache_salt: NotRequired[str]
    """Only requests with the same salt share blocks of the prefix cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMetrics:
    """Times of one request, in seconds since the epoch on a clock that never jumps back within one engine."""

    arrival_time: float
    first_token_time: float | None = None
    last_token_time: float | None = None
    finished_time: float | None = None
    """Set on the last output only."""
    num_generation_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Logprob:
    """How likely one token was at one position, to the model and before any rule of the request."""

    logprob: float
    """Natural logarithm of its probability."""
    rank: int | None = None
    """1 for the likeliest token of the vocabulary; None for one that was asked for by its id."""
    decoded_token: str | None = None
    """Its text by itself; None when no text is wanted."""


PositionLogprobs: TypeAlias = dict[int, Logprob]
"""By token id: the position's own token first, then the others, likeliest first."""


@dataclass(slots=True)
class CompletionOutput:
    """The answer of a request, or what is new of it; see `RequestOutputKind`."""

    index: int
    """Which of the request's `n` completions it is."""
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    """Of all tokens so far, whatever the output kind; None without `logprobs`."""
    logprobs: list[PositionLogprobs] | None = None
    """One for each of `token_ids`, where wanted."""
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    """The stop string or stop token id that ended it; None for the model's own end of sequence."""

    @property
    def is_finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestOutput:
    """One step of a request's answer. The last one of a request, and only it, is `finished`."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    """Shared by all outputs of the request: read it, do not change it. Empty when aborted before tokenization."""
    outputs: list[CompletionOutput]
    """By index: of DELTA the completions with news, of CUMULATIVE all that have begun, of FINAL_ONLY all."""
    finished: bool
    """Every completion has ended."""
    num_cached_tokens: int = 0
    """Prompt tokens whose keys and values came from the prefix cache."""
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    """Where wanted: one for each prompt token, None for the first. Not repeated by the later outputs of DELTA."""
    metrics: RequestMetrics = field(default_factory=lambda: RequestMetrics(arrival_time=0.0))
