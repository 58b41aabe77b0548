"""/v1/completions. A chunk of its stream has the shape of the whole answer."""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from headrace.openai.schema.generation import GenerationRequest
from headrace.openai.schema.logprobs import CompletionLogprobs, PromptLogprobs
from headrace.openai.schema.numbers import Int64, TokenCountOrZero, TokenId
from headrace.openai.schema.usage import Usage

DEFAULT_MAX_TOKENS = 16
"""OpenAI's, for this route only; null asks for the rest of the context."""


class CompletionRequest(GenerationRequest, kw_only=True):
    """`prompt` is a string, strings, the token ids of one prompt, or lists of them; `prompt_list` tells them apart."""

    prompt: str | list[str | TokenId | list[TokenId]]
    max_tokens: TokenCountOrZero | None = DEFAULT_MAX_TOKENS
    """0 with `echo` answers with the prompt alone, which is how its log probabilities are asked for."""
    add_special_tokens: bool | None = True
    logprobs: Int64 | None = None
    """Likeliest tokens to tell of at each place; 0 tells of the chosen one alone."""
    echo: bool | None = False
    """Repeat the prompt before the continuation."""


class CompletionChoice(msgspec.Struct, kw_only=True):
    text: str
    index: int = 0
    logprobs: CompletionLogprobs | None = None
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType = UNSET


class Completion(msgspec.Struct, kw_only=True):
    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType = UNSET
    object: Literal["text_completion"] = "text_completion"
