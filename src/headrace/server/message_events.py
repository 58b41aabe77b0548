"""The events of a stream in Anthropic's form: a message, its content blocks one after another, why it ended."""

import msgspec

from headrace.errors import HeadraceError
from headrace.openai.anthropic_errors import anthropic_error_body
from headrace.openai.schema.anthropic import (
    AnswerBlock,
    ContentBlockDelta,
    ContentBlockStart,
    ContentBlockStop,
    InputJsonDelta,
    Message,
    MessageDelta,
    MessageEnd,
    MessageEvent,
    MessageStart,
    MessageStop,
    MessageUsage,
    TextBlock,
    TextDelta,
    ToolUseBlock,
)
from headrace.openai.schema.chat import Delta
from headrace.openai.schema.tools import ToolCallDelta
from headrace.openai.schema.usage import Usage
from headrace.openai.sse import encode_event
from headrace.server.chat_dialect import AnswerReader
from headrace.server.generation_api import AnswerHead, Choice
from headrace.server.message_form import message_usage, stop_reason, stop_sequence


class MessageEvents:
    """One message. A block begins with its first text or with a call's name, and ends where another begins."""

    def __init__(self, head: AnswerHead, reader: AnswerReader) -> None:
        self._head = head
        self._reader = reader
        self._encode = msgspec.json.Encoder().encode
        self._num_blocks = 0
        self._open: AnswerBlock | None = None
        self._has_calls = False
        self._end = MessageEnd(stop_reason="end_turn", stop_sequence=None)

    def __repr__(self) -> str:
        return f"MessageEvents(num_blocks={self._num_blocks})"

    begins_early = True

    def beginning(self, *, num_prompt_tokens: int, num_cached_tokens: int) -> bytes:
        message = Message(
            id=self._head.id,
            model=self._head.model,
            content=[],
            stop_reason=None,
            stop_sequence=None,
            usage=MessageUsage(
                input_tokens=num_prompt_tokens - num_cached_tokens,
                cache_read_input_tokens=num_cached_tokens,
                output_tokens=0,
            ),
        )
        return self._event(MessageStart(message=message))

    async def opening(self, choice: Choice) -> bytes:  # noqa: ARG002 - a block begins with its text
        return b""

    def text(self, choice: Choice) -> bytes:
        return self._told(self._reader.text(choice))

    def finish(self, choice: Choice) -> bytes:
        completion = choice.completion
        events = self._told(self._reader.finish(choice)) + self._close()
        self._end = MessageEnd(
            stop_reason=stop_reason(completion.finish_reason, completion.stop_reason, has_calls=self._has_calls),
            stop_sequence=stop_sequence(completion.stop_reason),
        )
        return events

    def closing(self, usage: Usage) -> bytes:
        end = MessageDelta(delta=self._end, usage=message_usage(usage))
        return self._event(end) + self._event(MessageStop())

    def failure(self, error: HeadraceError) -> bytes:
        return encode_event(anthropic_error_body(error), name="error")

    def _told(self, delta: Delta) -> bytes:
        events = b""
        if delta.content:
            if not isinstance(self._open, TextBlock):
                events += self._begin(TextBlock(text=""))
            events += self._more(TextDelta(text=delta.content))
        for call in delta.tool_calls or ():
            events += self._call(call)
        return events

    def _call(self, call: ToolCallDelta) -> bytes:
        self._has_calls = True
        events = b""
        if call.id and call.function.name:
            events += self._begin(ToolUseBlock(id=call.id, name=call.function.name, input={}))
        if call.function.arguments:
            events += self._more(InputJsonDelta(partial_json=call.function.arguments))
        return events

    def _begin(self, block: AnswerBlock) -> bytes:
        closed = self._close()
        self._open = block
        return closed + self._event(ContentBlockStart(index=self._num_blocks, content_block=block))

    def _more(self, delta: TextDelta | InputJsonDelta) -> bytes:
        return self._event(ContentBlockDelta(index=self._num_blocks, delta=delta))

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        self._open = None
        self._num_blocks += 1
        return self._event(ContentBlockStop(index=self._num_blocks - 1))

    def _event(self, event: MessageEvent) -> bytes:
        return encode_event(self._encode(event), name=str(event.__struct_config__.tag))
