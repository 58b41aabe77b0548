"""/v1/messages and /v1/messages/count_tokens, in Anthropic's form. Also the events of its streams."""

from typing import Annotated, Literal, TypeAlias

import msgspec

from headrace.openai.schema.numbers import Int64, TokenCount

# -- what is asked

StopSequence: TypeAlias = Annotated[str, msgspec.Meta(min_length=1)]


class TextBlock(msgspec.Struct, kw_only=True, tag_field="type", tag="text"):
    text: str


class ThinkingBlock(msgspec.Struct, kw_only=True, tag_field="type", tag="thinking"):
    """What an assistant thought before. Templates that know of reasoning get to see it."""

    thinking: str


class ToolUseBlock(msgspec.Struct, kw_only=True, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: dict[str, object]


class ToolResultBlock(msgspec.Struct, kw_only=True, tag_field="type", tag="tool_result"):
    tool_use_id: str
    content: str | list[TextBlock] | None = None
    is_error: bool | None = None
    """The text says it too; templates know of no such mark."""


ContentBlock: TypeAlias = TextBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock


class InputMessage(msgspec.Struct, kw_only=True):
    role: Literal["user", "assistant", "system"]
    content: str | list[ContentBlock]


class CustomTool(msgspec.Struct, kw_only=True):
    """A function that the client runs. `type` is null or "custom"; tools that Anthropic runs have others."""

    name: str
    input_schema: dict[str, object] | None = None
    description: str | None = None
    type: str | None = None
    strict: bool | None = None


class ToolChoice(msgspec.Struct, kw_only=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class JsonOutputFormat(msgspec.Struct, kw_only=True, tag_field="type", tag="json_schema"):
    schema: dict[str, object]


class OutputConfig(msgspec.Struct, kw_only=True):
    format: JsonOutputFormat | None = None
    effort: str | None = None


class CountTokensRequest(msgspec.Struct, kw_only=True):
    """What makes the prompt. A last message of the assistant's is continued by the answer."""

    messages: list[InputMessage]
    model: str | None = None
    system: str | list[TextBlock] | None = None
    tools: list[CustomTool] | None = None
    tool_choice: ToolChoice | None = None
    output_config: OutputConfig | None = None


class MessagesRequest(CountTokensRequest, kw_only=True):
    max_tokens: TokenCount
    stream: bool | None = False
    stop_sequences: list[StopSequence] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int64 | None = None


# -- what is answered


AnswerBlock: TypeAlias = TextBlock | ToolUseBlock

StopReason: TypeAlias = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class MessageUsage(msgspec.Struct, kw_only=True, frozen=True, gc=False):
    """Tokens. Those of the prompt are the sum of the first three."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    output_tokens: int


class Message(msgspec.Struct, kw_only=True):
    id: str
    model: str
    content: list[AnswerBlock]
    stop_reason: StopReason | None
    """Null while the message grows."""
    stop_sequence: str | None
    usage: MessageUsage
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"


class TokensCounted(msgspec.Struct, kw_only=True):
    input_tokens: int


# -- events of a stream


class MessageStart(msgspec.Struct, kw_only=True, tag_field="type", tag="message_start"):
    message: Message


class ContentBlockStart(msgspec.Struct, kw_only=True, tag_field="type", tag="content_block_start"):
    index: int
    content_block: AnswerBlock


class TextDelta(msgspec.Struct, kw_only=True, tag_field="type", tag="text_delta"):
    text: str


class InputJsonDelta(msgspec.Struct, kw_only=True, tag_field="type", tag="input_json_delta"):
    partial_json: str


class ContentBlockDelta(msgspec.Struct, kw_only=True, tag_field="type", tag="content_block_delta"):
    index: int
    delta: TextDelta | InputJsonDelta


class ContentBlockStop(msgspec.Struct, kw_only=True, tag_field="type", tag="content_block_stop"):
    index: int


class MessageEnd(msgspec.Struct, kw_only=True):
    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, kw_only=True, tag_field="type", tag="message_delta"):
    delta: MessageEnd
    usage: MessageUsage


class MessageStop(msgspec.Struct, kw_only=True, tag_field="type", tag="message_stop"):
    pass


MessageEvent: TypeAlias = (
    MessageStart | ContentBlockStart | ContentBlockDelta | ContentBlockStop | MessageDelta | MessageStop
)
