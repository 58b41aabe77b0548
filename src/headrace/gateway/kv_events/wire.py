"""The bytes of KV events: vLLM's present form (events are maps), its former one and SGLang's (arrays). Pure.

A batch is `[time, [event, ...], data-parallel rank]`; a message is `topic, sequence number, batch`. A replay's answer
is the same behind an empty frame, formerly without the topic, and ends with the number -1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from headrace.errors import UpstreamProtocolError
from headrace.gateway.unreadable import UNREADABLE

EventHash: TypeAlias = int | bytes
_ExtraKeys: TypeAlias = list[list[object] | None] | None

_NUMBER_BYTES = 8
_END_OF_REPLAY = b"\xff" * _NUMBER_BYTES


class _Stored(msgspec.Struct, frozen=True, gc=False):
    block_hashes: list[EventHash]
    parent_block_hash: EventHash | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: _ExtraKeys = None


class BlockStored(_Stored, tag=True, frozen=True, gc=False):
    """Neighbouring blocks stand in a cache from now on."""

    group_idx: int | None = None


class _Removed(msgspec.Struct, frozen=True, gc=False):
    block_hashes: list[EventHash]
    medium: str | None = None


class BlockRemoved(_Removed, tag=True, frozen=True, gc=False):
    """Blocks have gone from a cache."""

    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, tag=True, frozen=True, gc=False):
    """All blocks have gone."""


Event: TypeAlias = BlockStored | BlockRemoved | AllBlocksCleared


# An array may go on with what a newer engine says, so it ends where all engines agree.
class _BlockStoredArray(_Stored, tag="BlockStored", array_like=True, frozen=True, gc=False):
    pass


class _BlockRemovedArray(_Removed, tag="BlockRemoved", array_like=True, frozen=True, gc=False):
    pass


class _AllBlocksClearedArray(msgspec.Struct, tag="AllBlocksCleared", array_like=True, frozen=True, gc=False):
    pass


class _Batch(msgspec.Struct, array_like=True, frozen=True, gc=False):
    time_s: float
    events: list[msgspec.Raw]
    data_parallel_rank: int | None = None


_BATCH = msgspec.msgpack.Decoder(_Batch)
_MAP = msgspec.msgpack.Decoder(Event)
_ARRAY = msgspec.msgpack.Decoder(_BlockStoredArray | _BlockRemovedArray | _AllBlocksClearedArray)


@dataclass(frozen=True, slots=True)
class EventBatch:
    """What one step of an engine changed, in order."""

    time_s: float
    """The engine's clock."""
    events: list[Event]
    num_unknown: int = 0
    """Events of kinds that are not known here."""


@dataclass(frozen=True, slots=True)
class Message:
    """A batch that came, not yet decoded."""

    number: int
    payload: bytes


def read_message(frames: Sequence[bytes]) -> Message:
    """A published message. Raises UpstreamProtocolError."""
    if len(frames) != 3 or len(frames[1]) != _NUMBER_BYTES:
        raise UpstreamProtocolError(f"A message of KV events has {len(frames)} frames; expected topic, number, batch.")
    return Message(int.from_bytes(frames[1], "big"), frames[2])


def ask_replay(first: int) -> list[bytes]:
    """The frames that ask a replay socket for all batches from number `first` on."""
    return [b"", first.to_bytes(_NUMBER_BYTES, "big")]


def read_replayed(frames: Sequence[bytes]) -> Message | None:
    """One frame group of a replay; None at its end. Raises UpstreamProtocolError."""
    parts = frames[-2:]
    if len(frames) not in {3, 4} or frames[0] or len(parts[0]) != _NUMBER_BYTES:
        raise UpstreamProtocolError(f"A replay of KV events has {len(frames)} frames; expected 3 or 4.")
    return None if parts[0] == _END_OF_REPLAY else Message(int.from_bytes(parts[0], "big"), parts[1])


def read_batch(payload: bytes) -> EventBatch:
    """Decode a batch. An event of an unknown kind is counted and left out. Raises UpstreamProtocolError."""
    try:
        batch = _BATCH.decode(payload)
    except UNREADABLE as error:
        raise UpstreamProtocolError(f"A batch of KV events cannot be read: {error}.") from error
    events = [event for raw in batch.events if (event := _read_event(raw)) is not None]
    return EventBatch(batch.time_s, events, len(batch.events) - len(events))


def _read_event(raw: msgspec.Raw) -> Event | None:
    data = bytes(raw)
    is_array = data[:1] in {b"\xdc", b"\xdd"} or 0x90 <= data[0] <= 0x9F
    try:
        return _from_array(data) if is_array else _MAP.decode(data)
    except UNREADABLE as error:
        if "Invalid value" in str(error):  # of the tag: an event from a newer engine
            return None
        raise UpstreamProtocolError(f"A KV event cannot be read: {error}.") from error


def _from_array(data: bytes) -> Event:
    event = _ARRAY.decode(data)
    if isinstance(event, _BlockStoredArray):
        return BlockStored(**msgspec.structs.asdict(event))
    if isinstance(event, _BlockRemovedArray):
        return BlockRemoved(event.block_hashes, event.medium)
    return AllBlocksCleared()
