"""/v1/chat/completions."""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from headrace.openai.schema.generation import GenerationRequest
from headrace.openai.schema.numbers import TokenCount, TokenId
from headrace.openai.schema.usage import Usage


class ChatCompletionRequest(GenerationRequest, kw_only=True):
    """Messages stay as they came, since templates read keys of their own; who renders them checks their shape.

    `prompt_token_ids`, when given, stands for the finished prompt: messages and template are then not looked at.
    """

    messages: list[dict[str, object]] | None = None
    max_tokens: TokenCount | None = None
    max_completion_tokens: TokenCount | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, object] | None = None
    prompt_token_ids: list[TokenId] | None = None


class AssistantMessage(msgspec.Struct, kw_only=True):
    content: str
    role: Literal["assistant"] = "assistant"
    refusal: None = None


class ChatChoice(msgspec.Struct, kw_only=True):
    message: AssistantMessage
    finish_reason: str | None
    index: int = 0
    logprobs: None = None
    stop_reason: str | int | UnsetType = UNSET


class ChatCompletion(msgspec.Struct, kw_only=True):
    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    object: Literal["chat.completion"] = "chat.completion"


class Delta(msgspec.Struct, kw_only=True):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, kw_only=True):
    delta: Delta
    index: int = 0
    logprobs: None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType = UNSET


class ChatCompletionChunk(msgspec.Struct, kw_only=True):
    id: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType = UNSET
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
