"""Reads one JSON object member by member while its text arrives in pieces cut anywhere.

Knows the shape of JSON and no meaning of any key. Nested values are passed on as they are written: where they end is
found by counting brackets outside strings, and nothing else of them is checked.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec

_STRING_STOP = re.compile(r'["\\]')
_NESTED_STOP = re.compile(r'["{}\[\]]')
_SCALAR_STOP = re.compile(r"[,}\]\s]")
_SCALAR = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?|true|false|null")
_NO_SPACE = re.compile(r"[^ \t\r\n]")

Status: TypeAlias = Literal["open", "complete", "failed"]

_Step: TypeAlias = Callable[[str, int], int]


@dataclass(frozen=True, slots=True)
class ValuePiece:
    """More of the value of one key, as it is written; `is_last` with the piece that ends it."""

    key: str
    text: str
    is_last: bool


class MemberReader:
    """One object, from its opening brace. Every character is looked at once.

    `status` is "complete" after the closing brace and "failed" at the first character that no JSON object can have.
    """

    def __init__(self) -> None:
        self.status: Status = "open"
        self._step: _Step = self._before_object
        self._piece: ValuePiece | None = None
        self._key = ""
        self._written = ""
        self._depth = 0
        self._is_in_string = False
        self._is_escaped = False

    def read(self, text: str, at: int) -> tuple[ValuePiece | None, int]:
        """The next piece of a value that `text` holds from `at` on, if any, and where reading goes on.

        The first character of an object, a list or a string is a piece of its own.
        """
        while at < len(text) and self.status == "open" and self._piece is None:
            at = self._step(text, at)
        piece, self._piece = self._piece, None
        return piece, at

    def __repr__(self) -> str:
        return f"MemberReader({self.status}, key={self._key!r})"

    # -- one method for each place in an object: takes what it can from `at` on, returns where the next one goes on

    def _before_object(self, text: str, at: int) -> int:
        return self._expect(text, at, {"{": self._before_first_key})

    def _before_first_key(self, text: str, at: int) -> int:
        return self._expect(text, at, {'"': self._in_key, "}": None})

    def _before_key(self, text: str, at: int) -> int:
        return self._expect(text, at, {'"': self._in_key})

    def _in_key(self, text: str, at: int) -> int:
        end, is_over = self._string_end(text, at)
        self._written += text[at:end]
        if is_over:
            self._end_key()
        return end

    def _before_colon(self, text: str, at: int) -> int:
        return self._expect(text, at, {":": self._before_value})

    def _before_value(self, text: str, at: int) -> int:
        at = _skip_space(text, at)
        if at == len(text):
            return at
        first = text[at]
        if first not in '{["':
            self._step = self._in_scalar
            return at
        self._give(first, is_last=False)
        self._depth = 1
        self._step = self._in_string if first == '"' else self._in_nested
        return at + 1

    def _in_string(self, text: str, at: int) -> int:
        end, is_over = self._string_end(text, at)
        self._give(text[at:end], is_last=is_over)
        if is_over:
            self._step = self._after_value
        return end

    def _in_nested(self, text: str, at: int) -> int:
        end = at
        while end < len(text):
            end = self._nested_end(text, end)
            if self._depth == 0 and not self._is_in_string:
                self._give(text[at:end], is_last=True)
                self._step = self._after_value
                return end
        self._give(text[at:end], is_last=False)
        return end

    def _in_scalar(self, text: str, at: int) -> int:
        stop = _SCALAR_STOP.search(text, at)
        end = stop.start() if stop else len(text)
        self._written += text[at:end]
        if stop is None:
            return end
        if _SCALAR.fullmatch(self._written) is None:
            self.status = "failed"
            return end
        self._give(self._written, is_last=True)
        self._written = ""
        self._step = self._after_value
        return end

    def _after_value(self, text: str, at: int) -> int:
        return self._expect(text, at, {",": self._before_key, "}": None})

    # -- what they share

    def _expect(self, text: str, at: int, following: dict[str, _Step | None]) -> int:
        """Skip white space, then take one of these characters, None with that which ends the object."""
        at = _skip_space(text, at)
        if at == len(text):
            return at
        if text[at] not in following:
            self.status = "failed"
            return at
        step = following[text[at]]
        if step is None:
            self.status = "complete"
        else:
            self._step = step
        return at + 1

    def _string_end(self, text: str, at: int) -> tuple[int, bool]:
        """Where the string that `text` is in ends, its closing quote with it, and whether it does."""
        while at < len(text):
            if self._is_escaped:
                self._is_escaped = False
                at += 1
                continue
            stop = _STRING_STOP.search(text, at)
            if stop is None:
                return len(text), False
            at = stop.end()
            if stop[0] == '"':
                return at, True
            self._is_escaped = True
        return at, False

    def _nested_end(self, text: str, at: int) -> int:
        """One bracket or one string further."""
        if self._is_in_string:
            at, is_over = self._string_end(text, at)
            self._is_in_string = not is_over
            return at
        stop = _NESTED_STOP.search(text, at)
        if stop is None:
            return len(text)
        if stop[0] == '"':
            self._is_in_string = True
        else:
            self._depth += 1 if stop[0] in "{[" else -1
        return stop.end()

    def _end_key(self) -> None:
        key = string_value('"' + self._written)
        self._written = ""
        if key is None:
            self.status = "failed"
        else:
            self._key = key
            self._step = self._before_colon

    def _give(self, text: str, *, is_last: bool) -> None:
        self._piece = ValuePiece(self._key, text, is_last)


def string_value(written: str) -> str | None:
    """What a JSON string, quotes and all, says; None when it is none."""
    try:
        return msgspec.json.decode(written, type=str)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None


def _skip_space(text: str, at: int) -> int:
    found = _NO_SPACE.search(text, at)
    return found.start() if found else len(text)
