"""The output items of a streamed response, each with the events of its beginning, its growth and its end. Pure."""

from collections.abc import Sequence

from headrace.openai.schema.logprobs import ChatTokenLogprob
from headrace.openai.schema.response_events import (
    ArgumentsDelta,
    ArgumentsDone,
    ItemAdded,
    ItemDone,
    PartAdded,
    PartDone,
    ResponseEvent,
    TextDelta,
    TextDone,
)
from headrace.openai.schema.responses import ItemStatus, OutputFunctionCall, OutputMessage, OutputText
from headrace.server.response_form import new_item_id


class GrowingMessage:
    """A message of one part of text. `index` is its place among the response's items."""

    def __init__(self, *, index: int) -> None:
        self._index = index
        self._texts: list[str] = []
        self._logprobs: list[ChatTokenLogprob] = []
        self.item = OutputMessage(id=new_item_id("msg"), status="in_progress", content=[])

    def __repr__(self) -> str:
        return f"GrowingMessage({self.item.id}, {len(self._texts)} pieces)"

    def begin(self) -> list[ResponseEvent]:
        return [
            ItemAdded(output_index=self._index, item=self.item),
            PartAdded(item_id=self.item.id, output_index=self._index, part=OutputText(text="")),
        ]

    def grow(self, text: str, logprobs: Sequence[ChatTokenLogprob]) -> list[ResponseEvent]:
        self._texts.append(text)
        self._logprobs += logprobs
        delta = TextDelta(item_id=self.item.id, output_index=self._index, delta=text, logprobs=list(logprobs))
        return [delta]

    def end(self, status: ItemStatus) -> list[ResponseEvent]:
        part = OutputText(text="".join(self._texts), logprobs=self._logprobs)
        self.item.content.append(part)
        self.item.status = status
        return [
            TextDone(item_id=self.item.id, output_index=self._index, text=part.text, logprobs=part.logprobs),
            PartDone(item_id=self.item.id, output_index=self._index, part=part),
            ItemDone(output_index=self._index, item=self.item),
        ]


class GrowingCall:
    """A call of a function, whose arguments come in pieces."""

    def __init__(self, *, index: int, call_id: str, name: str) -> None:
        self._index = index
        self._arguments: list[str] = []
        self.item = OutputFunctionCall(
            id=new_item_id("fc"), call_id=call_id, name=name, arguments="", status="in_progress"
        )

    def __repr__(self) -> str:
        return f"GrowingCall({self.item.id}, {self.item.name!r})"

    def begin(self) -> list[ResponseEvent]:
        return [ItemAdded(output_index=self._index, item=self.item)]

    def grow(self, arguments: str) -> list[ResponseEvent]:
        self._arguments.append(arguments)
        return [ArgumentsDelta(item_id=self.item.id, output_index=self._index, delta=arguments)]

    def end(self, status: ItemStatus) -> list[ResponseEvent]:
        item = self.item
        item.arguments = "".join(self._arguments)
        item.status = status
        return [
            ArgumentsDone(item_id=item.id, output_index=self._index, name=item.name, arguments=item.arguments),
            ItemDone(output_index=self._index, item=item),
        ]
