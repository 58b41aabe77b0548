"""/v1/chat/completions."""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from headrace.openai.schema.generation import GenerationRequest
from headrace.openai.schema.logprobs import ChatLogprobs, PromptLogprobs
from headrace.openai.schema.numbers import Int64, TokenCount, TokenId
from headrace.openai.schema.tools import ToolCall, ToolCallDelta
from headrace.openai.schema.usage import Usage


class ChatCompletionRequest(GenerationRequest, kw_only=True):
    """Messages stay as they came, since templates read keys of their own; who renders them checks their shape.

    `prompt_token_ids`, when given, stands for the finished prompt: messages and template are then not looked at.
    """

    messages: list[dict[str, object]] | None = None
    max_tokens: TokenCount | None = None
    max_completion_tokens: TokenCount | None = None
    logprobs: bool | None = False
    top_logprobs: Int64 | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, object] | None = None
    prompt_token_ids: list[TokenId] | None = None
    tools: list[dict[str, object]] | None = None
    """As they came, for templates read them; `openai.tools.request` checks their shape."""
    tool_choice: str | dict[str, object] | None = None
    parallel_tool_calls: bool | None = None


class AssistantMessage(msgspec.Struct, kw_only=True):
    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(msgspec.Struct, kw_only=True):
    message: AssistantMessage
    finish_reason: str | None
    index: int = 0
    logprobs: ChatLogprobs | None = None
    stop_reason: str | int | UnsetType = UNSET


class ChatCompletion(msgspec.Struct, kw_only=True):
    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    object: Literal["chat.completion"] = "chat.completion"


class Delta(msgspec.Struct, kw_only=True):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, kw_only=True):
    delta: Delta
    index: int = 0
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType = UNSET


class ChatCompletionChunk(msgspec.Struct, kw_only=True):
    id: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType = UNSET
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
