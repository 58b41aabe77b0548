"""/v1/responses: what is asked and what is answered. The events of its streams are in `response_events`."""

from typing import Literal, TypeAlias

import msgspec

from headrace.openai.schema.cache_salt import CacheSalt
from headrace.openai.schema.logprobs import ChatTokenLogprob
from headrace.openai.schema.numbers import Int64, TokenCount
from headrace.openai.schema.structured import StructuredOutputs

# -- what is asked


class TextPart(msgspec.Struct, kw_only=True):
    """`output_text` is what an assistant said before."""

    type: Literal["input_text", "output_text", "text"]
    text: str


class MessageItem(msgspec.Struct, kw_only=True):
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[TextPart]


class FunctionCallItem(msgspec.Struct, kw_only=True):
    call_id: str
    name: str
    arguments: str


class FunctionOutputItem(msgspec.Struct, kw_only=True):
    call_id: str
    output: str | list[TextPart]


class FunctionTool(msgspec.Struct, kw_only=True):
    name: str
    description: str | None = None
    parameters: dict[str, object] | None = None
    strict: bool | None = None


class TextFormat(msgspec.Struct, kw_only=True):
    """With "json_schema" the schema is followed to the letter, whatever `strict` says."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    description: str | None = None
    schema: dict[str, object] | None = None
    strict: bool | None = None


class TextConfig(msgspec.Struct, kw_only=True):
    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ResponseStreamOptions(msgspec.Struct, kw_only=True):
    include_obfuscation: bool | None = None
    """Of no effect: events are never padded here."""


Includable: TypeAlias = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]
"""All but the first are of items that no answer has here."""


class ResponsesRequest(msgspec.Struct, kw_only=True):
    """`input` is the user's text, or items; each is checked by the type that it says it has."""

    input: str | list[dict[str, object]]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: TokenCount | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: Int64 | None = None
    include: list[Includable] | None = None
    text: TextConfig | None = None
    tools: list[dict[str, object]] | None = None
    tool_choice: str | dict[str, object] | None = None
    parallel_tool_calls: bool | None = None
    metadata: dict[str, str] | None = None
    stream: bool | None = False
    stream_options: ResponseStreamOptions | None = None

    top_k: Int64 | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: Int64 | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    structured_outputs: StructuredOutputs | None = None
    priority: Int64 | None = None
    cache_salt: CacheSalt | None = None


# -- what is answered

ItemStatus: TypeAlias = Literal["in_progress", "completed", "incomplete"]


class OutputText(msgspec.Struct, kw_only=True):
    text: str
    annotations: list[str] = []
    """None are made."""
    logprobs: list[ChatTokenLogprob] = []
    type: Literal["output_text"] = "output_text"


class OutputMessage(msgspec.Struct, kw_only=True, tag_field="type", tag="message"):
    id: str
    status: ItemStatus
    content: list[OutputText]
    role: Literal["assistant"] = "assistant"


class OutputFunctionCall(msgspec.Struct, kw_only=True, tag_field="type", tag="function_call"):
    id: str
    call_id: str
    name: str
    arguments: str
    status: ItemStatus


OutputItem: TypeAlias = OutputMessage | OutputFunctionCall


class InputTokensDetails(msgspec.Struct, kw_only=True, frozen=True, gc=False):
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    """What is written to the prefix cache is not charged for and not counted."""


class OutputTokensDetails(msgspec.Struct, kw_only=True, frozen=True, gc=False):
    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct, kw_only=True, frozen=True):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails = OutputTokensDetails()
    total_tokens: int


class ResponseFailure(msgspec.Struct, kw_only=True, frozen=True):
    message: str
    code: str = "server_error"


class IncompleteDetails(msgspec.Struct, kw_only=True, frozen=True):
    reason: Literal["max_output_tokens"] = "max_output_tokens"


ResponseStatus: TypeAlias = Literal["in_progress", "completed", "incomplete", "failed"]


class Response(msgspec.Struct, kw_only=True):
    """Repeats of the request what its client is told to expect; null where it said nothing."""

    id: str
    created_at: int
    model: str
    status: ResponseStatus
    output: list[OutputItem]
    usage: ResponseUsage | None
    error: ResponseFailure | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    temperature: float | None
    text: TextConfig
    tool_choice: str | dict[str, object]
    tools: list[dict[str, object]]
    top_logprobs: int | None
    top_p: float | None
    background: Literal[False] = False
    previous_response_id: None = None
    store: Literal[False] = False
    truncation: Literal["disabled"] = "disabled"
    object: Literal["response"] = "response"
