"""The cache of encoded texts: least recently used goes first, and a flood of new texts does not push out the hot ones.

Segmented: what is new is on probation; what is asked for again is protected, and protected entries may hold four fifths
of the room. Only probation is evicted while it has entries, so a scan of unique texts turns over one fifth. Pure.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")

_PROTECTED_SHARE = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStatistics:
    """What a cache holds and what it has done since it was made."""

    num_entries: int
    num_bytes: int
    num_hits: int
    num_misses: int
    num_evictions: int


class _Entry(msgspec.Struct, Generic[ValueT], frozen=True, eq=False):
    value: ValueT
    num_bytes: int


class SegmentedCache(Generic[KeyT, ValueT]):
    """Keys to values, bounded in bytes and entries. Not thread-safe. A bound of 0 keeps nothing."""

    def __init__(
        self, *, max_bytes: int, max_entries: int, on_removal: Callable[[KeyT, ValueT], None] | None = None
    ) -> None:
        """`on_removal` is told of every entry that leaves, however it does."""
        self._on_removal = on_removal
        self._max_bytes = max_bytes
        self._max_entries = max_entries
        self._probation: OrderedDict[KeyT, _Entry[ValueT]] = OrderedDict()
        self._protected: OrderedDict[KeyT, _Entry[ValueT]] = OrderedDict()
        self._num_bytes = 0
        self._num_protected_bytes = 0
        self._num_hits = 0
        self._num_misses = 0
        self._num_evictions = 0

    def get(self, key: KeyT) -> ValueT | None:
        """The value of `key`, which becomes protected and the most recently used; None when it is not here."""
        entry = self._protected.get(key)
        if entry is not None:
            self._protected.move_to_end(key)
        else:
            entry = self._probation.pop(key, None)
            if entry is None:
                self._num_misses += 1
                return None
            self._protect(key, entry)
        self._num_hits += 1
        return entry.value

    def peek(self, key: KeyT) -> ValueT | None:
        """The value of `key`, which counts for nothing; None when it is not here."""
        entry = self._protected.get(key) or self._probation.get(key)
        return None if entry is None else entry.value

    def put(self, key: KeyT, value: ValueT, *, num_bytes: int, replaces: KeyT | None = None) -> None:
        """Keep `value`, which with its key takes `num_bytes`. What is too large to fit is not kept.

        The entry `replaces` leaves, and what it had earned by being asked for goes to the new one.
        """
        has_earned = replaces is not None and replaces in self._protected
        if replaces is not None:
            self.remove(replaces)
        if key in self:
            self.remove(key)
        if num_bytes > self._max_bytes or self._max_entries < 1:
            return
        self._num_bytes += num_bytes
        if has_earned:
            self._protect(key, _Entry(value, num_bytes))
        else:
            self._probation[key] = _Entry(value, num_bytes)
        while self._num_bytes > self._max_bytes or len(self._probation) + len(self._protected) > self._max_entries:
            self._evict(newest=key)

    def _protect(self, key: KeyT, entry: _Entry[ValueT]) -> None:
        self._protected[key] = entry
        self._num_protected_bytes += entry.num_bytes
        while len(self._protected) > 1 and self._is_protected_full():
            demoted_key, demoted = self._protected.popitem(last=False)
            self._num_protected_bytes -= demoted.num_bytes
            self._probation[demoted_key] = demoted

    def _is_protected_full(self) -> bool:
        return (
            self._num_protected_bytes > _PROTECTED_SHARE * self._max_bytes
            or len(self._protected) > _PROTECTED_SHARE * self._max_entries
        )

    def _evict(self, *, newest: KeyT) -> None:
        """Take out the least recently used, but `newest` only when nothing else is left."""
        oldest = next(iter(self._probation), None)
        if oldest is not None and (oldest != newest or not self._protected):
            self.remove(oldest)
        else:
            self.remove(next(iter(self._protected)))
        self._num_evictions += 1

    def remove(self, key: KeyT) -> None:
        """Let go of `key`, if it is here."""
        entry = self._probation.pop(key, None)
        if entry is None:
            entry = self._protected.pop(key, None)
            if entry is None:
                return
            self._num_protected_bytes -= entry.num_bytes
        self._num_bytes -= entry.num_bytes
        if self._on_removal is not None:
            self._on_removal(key, entry.value)

    def statistics(self) -> CacheStatistics:
        return CacheStatistics(
            num_entries=len(self),
            num_bytes=self._num_bytes,
            num_hits=self._num_hits,
            num_misses=self._num_misses,
            num_evictions=self._num_evictions,
        )

    def __contains__(self, key: KeyT) -> bool:
        return key in self._protected or key in self._probation

    def __len__(self) -> int:
        return len(self._probation) + len(self._protected)

    def __repr__(self) -> str:
        return f"SegmentedCache(num_entries={len(self)}, num_bytes={self._num_bytes} of {self._max_bytes})"
