"""What a tokenizer process and the process that started it say to each other: length-prefixed msgpack over a socket.

Questions are answered in the order in which they were asked, one answer each. Pure; knows no socket.
"""

import struct
from collections.abc import Iterator
from typing import TypeAlias

import msgspec

from headrace.errors import TokenizationError

MAX_FRAME_BYTES = 64 * 1024 * 1024
"""A longer frame is a defect, or not from us."""

MAX_TEXT_BYTES = MAX_FRAME_BYTES // 8
"""The longest text whose ids surely fit a frame: four bytes for each token, and hardly more tokens than bytes."""

_LENGTH = struct.Struct("<I")


class Load(msgspec.Struct, frozen=True, tag=True):
    """Load the tokenizer in `path`, warm it, and call it `number` from now on."""

    number: int
    path: str


class Encode(msgspec.Struct, frozen=True, tag=True):
    """Encode `text` with tokenizer `number`."""

    job: int
    number: int
    text: str
    add_special_tokens: bool


class Loaded(msgspec.Struct, frozen=True, tag=True):
    number: int
    fingerprint: str


class LoadFailed(msgspec.Struct, frozen=True, tag=True):
    number: int
    message: str


class Ids(msgspec.Struct, frozen=True, tag=True):
    """The ids of job `job`, as unsigned 32-bit integers in the machine's byte order."""

    job: int
    token_ids: bytes
    run_s: float


class EncodeFailed(msgspec.Struct, frozen=True, tag=True):
    """The tokenizer raised for the text of job `job`; the process is well."""

    job: int
    message: str
    is_text_at_fault: bool


Question: TypeAlias = Load | Encode
Answer: TypeAlias = Loaded | LoadFailed | Ids | EncodeFailed


def encode_frame(message: msgspec.Struct) -> bytes:
    """`message` as one frame, its length first. Raises TokenizationError when it is too long."""
    payload = msgspec.msgpack.encode(message)
    _check_frame_bytes(len(payload))
    return _LENGTH.pack(len(payload)) + payload


class FrameSplitter:
    """Cuts a byte stream into frames, however it was chunked. Holds one incomplete frame at most."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The payloads that `chunk` completes. Raises TokenizationError for a frame longer than allowed."""
        self._buffer += chunk
        start = 0
        while (end := self._frame_end(start)) is not None:
            yield bytes(self._buffer[start + _LENGTH.size : end])
            start = end
        del self._buffer[:start]

    def _frame_end(self, start: int) -> int | None:
        if len(self._buffer) < start + _LENGTH.size:
            return None
        (num_bytes,) = _LENGTH.unpack_from(self._buffer, start)
        _check_frame_bytes(num_bytes)
        end: int = start + _LENGTH.size + num_bytes
        return end if len(self._buffer) >= end else None


def _check_frame_bytes(num_bytes: int) -> None:
    if num_bytes > MAX_FRAME_BYTES:
        raise TokenizationError(f"a frame of {num_bytes} bytes is longer than the {MAX_FRAME_BYTES} that are allowed")
