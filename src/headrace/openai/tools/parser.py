"""Finds tool calls in a model's text as it grows: what is a call is never told as text, and what is none never lost.

Pure, and indifferent to where the text is cut: the pieces told of any cutting join to the same. Every character is
looked at a bounded number of times.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, TypeAlias

from headrace.openai.tools.call_reader import CallPiece, CallReader
from headrace.openai.tools.forms import ToolForm

_Place: TypeAlias = Literal["text", "call", "after call"]


@dataclass(frozen=True, slots=True)
class CallDelta:
    """What is new of the call `index`: its name with the first piece, then more of its arguments."""

    index: int
    name: str | None
    arguments: str


@dataclass(frozen=True, slots=True)
class ParsedDelta:
    """What a piece of text turned out to add; of each call at most one delta."""

    content: str = ""
    calls: tuple[CallDelta, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.content or self.calls)


class ToolCallParser:
    """One answer. Text is held back while it may still become a call, and white space while a call may follow it.

    A call is taken for one as soon as its name is known and its arguments begin; arguments are passed on as the model
    wrote them, which an answer that is cut short leaves unfinished. White space next to a call is layout and dropped.
    """

    def __init__(self, form: ToolForm, *, tool_names: Collection[str], allows_several: bool = True) -> None:
        """`tool_names` are those of the request. Without `allows_several`, calls after the first are dropped."""
        self._form = form
        self._opener = re.compile("|".join(map(re.escape, form.openers)))
        self._known_names = frozenset(tool_names) if form.is_bare else None
        self._allows_several = allows_several
        self._place: _Place = "text"
        self._tail = ""
        """Unread: perhaps the beginning of an opener, or of the closer."""
        self._space: list[str] = []
        """Separators that were not told yet, since a call may follow."""
        self._held: list[str] = []
        """What is text if the call that is being read turns out to be none."""
        self._reader = CallReader(known_names=self._known_names)
        self.num_calls = 0
        self._content: list[str] = []
        self._calls: dict[int, list[CallPiece]] = {}

    def feed(self, text: str) -> ParsedDelta:
        """What the next piece of the answer adds."""
        text = self._tail + text
        self._tail = ""
        at = 0
        while at < len(text):
            if self._place == "text":
                at = self._read_text(text, at)
            elif self._place == "call":
                at = self._read_call(text, at)
            else:
                at = self._read_closer(text, at)
        return self._told()

    def finish(self) -> ParsedDelta:
        """What was held back, when the answer has ended. Call it once."""
        if self._place == "call":
            self._end_call()
        self._tell_text(self._tail)
        if self.num_calls == 0:
            self._content += self._space
        return self._told()

    def __repr__(self) -> str:
        return f"ToolCallParser({self._form.name}, num_calls={self.num_calls}, in {self._place})"

    def _read_text(self, text: str, at: int) -> int:
        found = self._opener.search(text, at)
        if found is None:
            end = len(text) - _num_begun(text, at, self._form.openers)
            self._tell_text(text[at:end])
            self._tail = text[end:]
            return len(text)
        self._tell_text(text[at : found.start()])
        self._reader = CallReader(known_names=self._known_names)
        self._place = "call"
        if found[0] == "{":
            return found.start()
        self._held.append(found[0])
        return found.end()

    def _read_call(self, text: str, at: int) -> int:
        pieces, end = self._reader.read(text, at)
        if self._reader.is_call:
            self._tell_call(pieces)
        else:
            self._held.append(text[at:end])
        if self._reader.status != "open":
            self._end_call()
        return end

    def _end_call(self) -> None:
        if self._reader.is_call:
            self.num_calls += 1
            self._place = "text" if self._form.closer is None else "after call"
        else:
            held = "".join(self._held)
            self._held.clear()
            self._tell_text(held)
            self._place = "text"

    def _read_closer(self, text: str, at: int) -> int:
        """White space and the closer, which a model may forget."""
        closer = self._form.closer or ""
        start = at
        while start < len(text) and text[start] in self._form.separators:
            start += 1
        self._space.append(text[at:start])
        if text.startswith(closer, start):
            self._space.clear()
            self._place = "text"
            return start + len(closer)
        if len(text) - start < len(closer) and closer.startswith(text[start:]):
            self._tail = text[start:]
            return len(text)
        self._place = "text"
        return start

    def _tell_text(self, text: str) -> None:
        body = text.rstrip(self._form.separators)
        if body:
            self._content += [*self._space, body]
            self._space.clear()
        if len(body) < len(text):
            self._space.append(text[len(body) :])

    def _tell_call(self, pieces: list[CallPiece]) -> None:
        self._held.clear()
        self._space.clear()
        if self.num_calls == 0 or self._allows_several:
            self._calls.setdefault(self.num_calls, []).extend(pieces)

    def _told(self) -> ParsedDelta:
        content = "".join(self._content)
        calls = tuple(_joined(index, pieces) for index, pieces in self._calls.items() if pieces)
        self._content.clear()
        self._calls.clear()
        return ParsedDelta(content, calls)


def _joined(index: int, pieces: list[CallPiece]) -> CallDelta:
    return CallDelta(index, pieces[0].name, "".join(piece.arguments for piece in pieces))


def _num_begun(text: str, at: int, openers: tuple[str, ...]) -> int:
    """How many of the last characters, after `at`, may be the beginning of an opener."""
    longest = max(map(len, openers)) - 1
    for size in range(min(longest, len(text) - at), 0, -1):
        if any(opener.startswith(text[-size:]) for opener in openers):
            return size
    return 0
