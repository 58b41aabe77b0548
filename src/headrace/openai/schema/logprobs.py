"""Log probabilities, in the two routes' forms and in vLLM's for those of a prompt."""

from typing import TypeAlias

import msgspec


class ChatTopLogprob(msgspec.Struct, kw_only=True, gc=False):
    token: str
    logprob: float
    bytes: list[int]
    """The token's text in UTF-8."""


class ChatTokenLogprob(msgspec.Struct, kw_only=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[ChatTopLogprob]


class ChatLogprobs(msgspec.Struct, kw_only=True):
    """One entry for each token of the choice."""

    content: list[ChatTokenLogprob]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct, kw_only=True):
    """Lists of equal length, one place for each token. What is null belongs to the first token of an echoed prompt."""

    text_offset: list[int]
    """Where the token's text begins in that of the choice, in characters."""
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class PromptLogprob(msgspec.Struct, kw_only=True, gc=False):
    logprob: float
    rank: int | None
    decoded_token: str | None


PromptLogprobs: TypeAlias = list[dict[int, PromptLogprob] | None]
"""One for each token of the prompt, by token id; null for the first."""
