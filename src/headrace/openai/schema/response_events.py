"""The events of a stream of /v1/responses. Each has its number in the stream; its name is its `type`."""

from typing import TypeAlias

import msgspec

from headrace.openai.schema.logprobs import ChatTokenLogprob
from headrace.openai.schema.responses import OutputItem, OutputText, Response


class _Event(msgspec.Struct, kw_only=True, tag_field="type"):
    sequence_number: int = 0
    """Set when it is written."""


class Created(_Event, kw_only=True, tag="response.created"):
    response: Response


class InProgress(_Event, kw_only=True, tag="response.in_progress"):
    response: Response


class Completed(_Event, kw_only=True, tag="response.completed"):
    response: Response


class Incomplete(_Event, kw_only=True, tag="response.incomplete"):
    response: Response


class Failed(_Event, kw_only=True, tag="response.failed"):
    response: Response


class ItemAdded(_Event, kw_only=True, tag="response.output_item.added"):
    output_index: int
    item: OutputItem


class ItemDone(_Event, kw_only=True, tag="response.output_item.done"):
    output_index: int
    item: OutputItem


class PartAdded(_Event, kw_only=True, tag="response.content_part.added"):
    item_id: str
    output_index: int
    content_index: int = 0
    part: OutputText


class PartDone(_Event, kw_only=True, tag="response.content_part.done"):
    item_id: str
    output_index: int
    content_index: int = 0
    part: OutputText


class TextDelta(_Event, kw_only=True, tag="response.output_text.delta"):
    item_id: str
    output_index: int
    content_index: int = 0
    delta: str
    logprobs: list[ChatTokenLogprob]


class TextDone(_Event, kw_only=True, tag="response.output_text.done"):
    item_id: str
    output_index: int
    content_index: int = 0
    text: str
    logprobs: list[ChatTokenLogprob]


class ArgumentsDelta(_Event, kw_only=True, tag="response.function_call_arguments.delta"):
    item_id: str
    output_index: int
    delta: str


class ArgumentsDone(_Event, kw_only=True, tag="response.function_call_arguments.done"):
    item_id: str
    output_index: int
    name: str
    arguments: str


ResponseEvent: TypeAlias = (
    Created
    | InProgress
    | Completed
    | Incomplete
    | Failed
    | ItemAdded
    | ItemDone
    | PartAdded
    | PartDone
    | TextDelta
    | TextDone
    | ArgumentsDelta
    | ArgumentsDone
)
