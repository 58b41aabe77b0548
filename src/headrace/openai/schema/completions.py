"""/v1/completions. A chunk of its stream has the shape of the whole answer."""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from headrace.openai.schema.generation import GenerationRequest
from headrace.openai.schema.numbers import TokenCount, TokenId
from headrace.openai.schema.usage import Usage

DEFAULT_MAX_TOKENS = 16
"""OpenAI's, for this route only; null asks for the rest of the context."""


class CompletionRequest(GenerationRequest, kw_only=True):
    """`prompt` is a string, strings, the token ids of one prompt, or lists of them; `prompt_list` tells them apart."""

    prompt: str | list[str | TokenId | list[TokenId]]
    max_tokens: TokenCount | None = DEFAULT_MAX_TOKENS
    add_special_tokens: bool | None = True


class CompletionChoice(msgspec.Struct, kw_only=True):
    text: str
    index: int = 0
    logprobs: None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType = UNSET


class Completion(msgspec.Struct, kw_only=True):
    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType = UNSET
    object: Literal["text_completion"] = "text_completion"
