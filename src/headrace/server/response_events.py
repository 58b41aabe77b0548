"""The events of a stream of /v1/responses: the response, its output items one after another, its end."""

from collections.abc import Sequence

import msgspec

from headrace.errors import HeadraceError
from headrace.openai.from_responses import ResponseChat
from headrace.openai.schema.chat import Delta
from headrace.openai.schema.logprobs import ChatTokenLogprob
from headrace.openai.schema.response_events import Completed, Created, Failed, Incomplete, InProgress, ResponseEvent
from headrace.openai.schema.responses import ItemStatus, OutputItem, ResponseFailure
from headrace.openai.schema.tools import ToolCallDelta
from headrace.openai.schema.usage import Usage
from headrace.openai.sse import encode_event
from headrace.server.chat_dialect import AnswerReader
from headrace.server.generation_api import AnswerHead, Choice
from headrace.server.logprobs import chat_logprobs
from headrace.server.response_form import begun_response, end_response, last_status
from headrace.server.response_items import GrowingCall, GrowingMessage


class ResponseEvents:
    """One response. An item begins with its first text or with a call's name, and ends where another begins."""

    def __init__(self, head: AnswerHead, chat: ResponseChat, reader: AnswerReader) -> None:
        self._response = begun_response(head, chat)
        self._num_top = chat.top_logprobs or 0
        self._reader = reader
        self._encode = msgspec.json.Encoder().encode
        self._num_events = 0
        self._items: list[OutputItem] = []
        self._growing: GrowingMessage | GrowingCall | None = None
        self._untold_logprobs: list[ChatTokenLogprob] = []
        """Of tokens whose text was held back."""
        self._finish_reason: str | None = None

    def __repr__(self) -> str:
        return f"ResponseEvents(num_events={self._num_events}, num_items={len(self._items)})"

    begins_early = True

    def beginning(self, *, num_prompt_tokens: int, num_cached_tokens: int) -> bytes:  # noqa: ARG002 - told at the end
        return self._written([Created(response=self._response), InProgress(response=self._response)])

    async def opening(self, choice: Choice) -> bytes:  # noqa: ARG002 - there is one
        return b"" if self._reader.may_call else self._begin(self._new_message())

    def text(self, choice: Choice) -> bytes:
        if (positions := choice.completion.logprobs) is not None:
            self._untold_logprobs += chat_logprobs(positions, num_top=self._num_top).content
        return self._told(self._reader.text(choice))

    def finish(self, choice: Choice) -> bytes:
        self._finish_reason = choice.completion.finish_reason
        events = self._told(self._reader.finish(choice))
        if not self._items:
            events += self._begin(self._new_message())
        return events + self._end(last_status(self._finish_reason))

    def closing(self, usage: Usage) -> bytes:
        response = self._response
        end_response(response, self._items, finish_reason=self._finish_reason, usage=usage)
        is_cut = response.status == "incomplete"
        return self._written([Incomplete(response=response) if is_cut else Completed(response=response)])

    def failure(self, error: HeadraceError) -> bytes:
        self._response.status = "failed"
        self._response.error = ResponseFailure(message=error.message)
        return self._written([Failed(response=self._response)])

    def _told(self, delta: Delta) -> bytes:
        written = b""
        if delta.content:
            if not isinstance(self._growing, GrowingMessage):
                written += self._begin(self._new_message())
            assert isinstance(self._growing, GrowingMessage)
            written += self._written(self._growing.grow(delta.content, self._untold_logprobs))
            self._untold_logprobs = []
        return written + b"".join([self._call(call) for call in delta.tool_calls or ()])

    def _call(self, call: ToolCallDelta) -> bytes:
        written = b""
        if call.id and call.function.name:
            growing = GrowingCall(index=len(self._items), call_id=call.id, name=call.function.name)
            written += self._begin(growing)
        if call.function.arguments and isinstance(self._growing, GrowingCall):
            written += self._written(self._growing.grow(call.function.arguments))
        return written

    def _new_message(self) -> GrowingMessage:
        return GrowingMessage(index=len(self._items))

    def _begin(self, growing: GrowingMessage | GrowingCall) -> bytes:
        ended = self._end("completed")
        self._growing = growing
        self._items.append(growing.item)
        return ended + self._written(growing.begin())

    def _end(self, status: ItemStatus) -> bytes:
        if self._growing is None:
            return b""
        growing, self._growing = self._growing, None
        return self._written(growing.end(status))

    def _written(self, events: Sequence[ResponseEvent]) -> bytes:
        written = b""
        for event in events:
            event.sequence_number = self._num_events
            self._num_events += 1
            written += encode_event(self._encode(event), name=str(event.__struct_config__.tag))
        return written
