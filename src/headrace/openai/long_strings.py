"""Takes the long strings out of a JSON text while it arrives, so that nobody has to decode megabytes in one go.

Every call takes a time that its piece bounds. A string that lies in one piece stays where it is; of one that does not,
each piece is decoded when it comes, and a marker goes into the JSON in its place, which `JsonBody.restore` finds. Cuts
are made where an escape or a character ends, so what is no JSON string is refused by the decoder of JSON as ever.
Pure; knows nothing of what the JSON means.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from headrace.errors import InvalidRequestError

_MIN_LONG_BYTES = 64 << 10
"""Of strings that are taken out, as JSON has them."""

_MAX_PIECE_BYTES = 256 << 10
"""Scanned and decoded in about a millisecond, escapes and all."""

_MAX_CONTAINERS = 1 << 16
"""Arrays and objects, of which a decoder makes that many in some 30 ms. Where fewer than one byte of `_SPARSE` may
begin one, they are not counted: megabytes of text hold some that are none."""

_SPARSE = 64

_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)

_MAX_CHARS_SHOWN = 60

_WITHOUT_STRINGS = frozenset({int, float, bool, type(None)})

_LONGEST_ESCAPE = len(r"\ud83d\ude00")

_WITHOUT_LONG = re.compile(rb'(?:[^"]++|"(?:[^"\\]++|\\.)*+")*+', re.DOTALL)
"""All that may be passed by: whole strings and what is between them."""

_HIGH, _LOW = rb"\\u[dD][89abAB][0-9a-fA-F]{2}", rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_UNITS = re.compile(rb'(?:[^"\\]++|\\[^u]|%s%s|(?!%s)\\u[0-9a-fA-F]{4})*+' % (_HIGH, _LOW, _HIGH), re.DOTALL)
"""Of a string, whole characters and whole escapes. Half of a pair of surrogates is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonBody:
    """A JSON text without its long strings, and those."""

    json: bytes
    long_strings: Mapping[str, str]
    """By the marker that stands for each."""

    def restore(self, value: object) -> object:
        """`value`, decoded from `json`, with every long string in its place. Keys of objects stay markers."""
        return self._restored(value) if self.long_strings else value

    def unmarked(self, text: str) -> str:
        """`text`, an error's, with the beginning of a long string for each marker."""
        for marker in reversed(list(self.long_strings)):  # the ninth begins as the ninetieth does
            text = text.replace(marker, f"{self.long_strings[marker][:_MAX_CHARS_SHOWN]}...")
        return text

    def _restored(self, value: object) -> object:
        if isinstance(value, str):
            return self.long_strings.get(value, value)
        if isinstance(value, list):
            if not _WITHOUT_STRINGS.issuperset(map(type, value)):  # millions of numbers take no time
                value[:] = [self._restored(item) for item in value]
        elif isinstance(value, dict):
            for key, item in value.items():
                value[key] = self._restored(item)
        elif isinstance(value, msgspec.Struct):
            for name in value.__struct_fields__:
                was = getattr(value, name)
                if (restored := self._restored(was)) is not was:
                    msgspec.structs.force_setattr(value, name, restored)
        return value


Body: TypeAlias = bytes | JsonBody


class LongStringReader:
    """`feed` it a JSON text piece by piece, then `finish`. `marker` must be such that no client can know it."""

    def __init__(self, *, marker: str, min_long_bytes: int = _MIN_LONG_BYTES) -> None:
        self._marker = marker
        self._min_long_bytes = min_long_bytes
        self._json: list[bytes] = []
        self._long_strings: dict[str, str] = {}
        self._string: _OpenString | None = None
        self._num_containers = 0

    def __repr__(self) -> str:
        return f"LongStringReader({len(self._long_strings)} long strings)"

    def feed(self, piece: bytes) -> None:
        """Raises msgspec.DecodeError, or UnicodeDecodeError, for a long string that is none, and InvalidRequestError
        for more arrays and objects than can be decoded in a moment."""
        for begin in range(0, len(piece), _MAX_PIECE_BYTES):
            self._feed(piece[begin : begin + _MAX_PIECE_BYTES])

    def finish(self) -> JsonBody:
        if self._string is not None:  # without an end: the decoder of JSON says so
            self._json.append(self._string.rest())
        return JsonBody(json=b"".join(self._json), long_strings=self._long_strings)

    def _feed(self, piece: bytes) -> None:
        position = 0
        while position < len(piece):
            if self._string is None:
                position = self._pass_by(piece, position)
                continue
            piece, position = self._string.carried() + piece[position:], 0
            position = self._string.take(piece)
            if piece[position : position + 1] != b'"':
                return  # the string goes on in the next piece
            self._json.append(self._end(self._string) + b'"')
            self._string = None
            position += 1

    def _pass_by(self, piece: bytes, begin: int) -> int:
        """Keep what holds no long string; the position behind it."""
        end = _match_end(_WITHOUT_LONG, piece, begin)
        self._count_containers(piece[begin:end])
        if end < len(piece):  # a string that does not end in this piece
            end += 1
            self._string = _OpenString(self._min_long_bytes)
        self._json.append(piece[begin:end])
        return end

    def _count_containers(self, text: bytes) -> None:
        num_brackets = text.count(b"[") + text.count(b"{")
        if num_brackets * _SPARSE < len(text):
            return
        text = _STRING.sub(b"", text)
        self._num_containers += text.count(b"[") + text.count(b"{")
        if self._num_containers > _MAX_CONTAINERS:
            message = f"the body has more than {_MAX_CONTAINERS} arrays and objects; send fewer at once"
            raise InvalidRequestError(message)

    def _end(self, string: "_OpenString") -> bytes:
        """What goes into the JSON for it."""
        text = string.text()
        if text is None:
            return string.rest()
        marker = f"{self._marker} {len(self._long_strings)}"
        self._long_strings[marker] = text
        return marker.encode()


@dataclass(slots=True)
class _OpenString:
    """One string whose end has not come, as JSON has it until it is long, as text from then on."""

    min_long_bytes: int
    _raw: bytearray = field(default_factory=bytearray)
    """Whole characters and escapes that are not decoded."""
    _carry: bytes = b""
    """What may be the beginning of one."""
    _parts: list[str] = field(default_factory=list)

    def carried(self) -> bytes:
        """The end of the last piece, which belongs before the next one."""
        carry, self._carry = self._carry, b""
        return carry

    def take(self, piece: bytes) -> int:
        """Take what belongs to the string; the position of the quotation mark behind it, or the end of `piece`."""
        end = _match_end(_UNITS, piece, 0)
        while end < len(piece) and piece[end : end + 1] == b"\\" and len(piece) - end >= _LONGEST_ESCAPE:
            end = _match_end(_UNITS, piece, end + 2)  # no escape of JSON, which the decoder says
        has_ended = piece[end : end + 1] == b'"'
        keep = end if has_ended else end - _num_bytes_of_cut_character(piece, end)
        self._raw += piece[:keep]
        if not has_ended:
            self._carry = piece[keep:]
        if self._parts or len(self._raw) >= self.min_long_bytes:
            self._parts.append(msgspec.json.decode(b'"%s"' % self._raw, type=str))
            self._raw.clear()
        return end if has_ended else len(piece)

    def text(self) -> str | None:
        """The whole string; None when it is not long."""
        return "".join(self._parts) if self._parts else None

    def rest(self) -> bytes:
        """What of it was not decoded."""
        return bytes(self._raw) + self._carry


def _match_end(pattern: re.Pattern[bytes], piece: bytes, begin: int) -> int:
    match = pattern.match(piece, begin)
    assert match is not None, "these patterns match nothing too"
    return match.end()


def _num_bytes_of_cut_character(piece: bytes, end: int) -> int:
    """How many bytes before `end` begin a character of UTF-8 that goes on behind it; 0 for what is no UTF-8."""
    for num_bytes in range(1, min(4, end + 1)):
        byte = piece[end - num_bytes]
        if byte < 0x80:
            return 0
        if byte >= 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return num_bytes if num_bytes < length else 0
    return 0
