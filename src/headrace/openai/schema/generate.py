"""/inference/v1/generate, as vLLM has it: token ids in, token ids out. /render answers with its requests."""

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from headrace.openai.schema.cache_salt import CacheSalt
from headrace.openai.schema.generation import StreamOptions
from headrace.openai.schema.logprobs import PromptLogprobs
from headrace.openai.schema.numbers import Int64, TokenId
from headrace.openai.schema.usage import Usage

OutputMode: TypeAlias = Literal["tokens", "text"]


class GenerateRequest(msgspec.Struct, kw_only=True):
    """`sampling_params` has the fields of vLLM's SamplingParams; without `max_tokens` the context is filled."""

    token_ids: list[TokenId]
    sampling_params: dict[str, object]
    request_id: str | None = None
    """What the answer, and /abort, call it; one is made up where none is given."""
    model: str | None = None
    output_mode: OutputMode = "tokens"
    """With "text" the answer holds the text too."""
    return_token_ids: bool | None = None
    """Repeat the prompt's token ids."""
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    priority: Int64 | None = 0
    cache_salt: CacheSalt | None = None


class TokenLogprob(msgspec.Struct, kw_only=True, gc=False):
    token_id: int
    logprob: float
    rank: int | None


class GeneratedLogprob(msgspec.Struct, kw_only=True):
    token_id: int
    logprob: float
    rank: int | None
    top_logprobs: list[TokenLogprob]
    """The token itself first, then the others that were asked for, likeliest first."""


class GeneratedLogprobs(msgspec.Struct, kw_only=True):
    """One entry for each token."""

    content: list[GeneratedLogprob]


AnyLogprobs: TypeAlias = Annotated[
    object, msgspec.Meta(description="GeneratedLogprobs; with output_mode text ChatLogprobs; null without")
]
"""Either is written as it is. msgspec cannot tell the two apart, and so describes neither."""


class GenerateChoice(msgspec.Struct, kw_only=True):
    index: int
    token_ids: list[int]
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType = UNSET
    text: str | UnsetType = UNSET
    logprobs: AnyLogprobs = None


class GenerateChunk(msgspec.Struct, kw_only=True):
    request_id: str
    output_mode: OutputMode
    choices: list[GenerateChoice]
    prompt_token_ids: list[int] | UnsetType = UNSET
    """On the first chunk of a prompt whose ids are to be repeated."""
    usage: Usage | UnsetType = UNSET


class GenerateResponse(msgspec.Struct, kw_only=True):
    request_id: str
    model: str
    created: int
    output_mode: OutputMode
    choices: list[GenerateChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | UnsetType = UNSET
