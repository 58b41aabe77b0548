"""Encoded texts that are kept: found whole by their text, and from where to resume by how a new text begins.

A record is filed under a short piece of its text at each of a few fixed depths. A new text is looked up from the
deepest down; what is found is compared character by character before anything of it is used. Pure, not thread-safe.
"""

import sys
from bisect import bisect_right
from collections.abc import Iterator
from typing import NewType

import msgspec

from headrace.tokenization.cache import CacheStatistics, SegmentedCache
from headrace.tokenization.segments import LOOKAHEAD, MIN_CUT_CHARS
from headrace.tokenization.tokenizer import TokenIds
from headrace.tokenization.works import EncodedText

Namespace = NewType("Namespace", str)
"""What must be equal for ids to be: tokenizer, shortcuts, whether special tokens are added."""

_RecordKey = tuple[Namespace, str | int]
"""The text itself where it is short, else a number: hashing a long text takes longer than finding it by probes."""

_Probe = tuple[Namespace, int, str]
"""A depth in a text and the characters before it."""

_PROBE_CHARS = 64
_MAX_PER_PROBE = 8
_MAX_COMPARED = 6
_ENTRY_NUM_BYTES = 560
"""Memory of a record beside its text and ids: key, entry, array object, dictionary slots."""
_UNUSED_SHARE = 8
"""One part in so many more is lost between blocks of memory when entries of all sizes come and go (measured: a million
prompts leave the process 13 to 19 % over what the entries hold)."""
_STR_NUM_BYTES = sys.getsizeof("\u4e00") - 2
_CUT_NUM_BYTES = 120
_PROBE_NUM_BYTES = 300


class Resume(msgspec.Struct, frozen=True, eq=False):
    """Where a text may be resumed."""

    start: int
    token_ids: TokenIds
    cuts: tuple[tuple[int, int], ...]
    key: _RecordKey
    is_whole: bool
    """Whether the text continues all of the record, which it can then replace."""


class _Record(msgspec.Struct, frozen=True, eq=False):
    text: str
    encoded: EncodedText
    probes: tuple[_Probe, ...]

    @property
    def num_bytes(self) -> int:
        of_parts = _CUT_NUM_BYTES * len(self.encoded.cuts) + _PROBE_NUM_BYTES * len(self.probes)
        num_bytes = _ENTRY_NUM_BYTES + sys.getsizeof(self.text) + self.encoded.token_ids.nbytes + of_parts
        return num_bytes + num_bytes // _UNUSED_SHARE

    def shared(self, text: str) -> int:
        """How many of the record's cuts are cuts of `text` with equal text before them."""
        cuts = self.encoded.cuts
        if text.startswith(self.text):  # most often; the slices below copy
            return len(cuts)
        high = bisect_right(cuts, (len(text) - 1, sys.maxsize))
        if high == 0:
            return 0
        low, equal_to, reach = 0, 0, 0
        while low < high:  # cuts before `low` are shared, the one at `high` and those after it are not
            middle = min(reach, (low + high) // 2)  # texts often part early; what is compared is copied
            end = cuts[middle][0] + LOOKAHEAD
            if text[equal_to:end] == self.text[equal_to:end]:
                low, equal_to, reach = middle + 1, end, 2 * middle + 1
            else:
                high = middle
        return low


class Records:
    """Encoded texts within one budget of bytes. Texts up to `max_whole_text` bytes are found whole as well."""

    def __init__(self, *, max_bytes: int, max_entries: int, max_whole_text: int, max_resumed_text: int) -> None:
        """0 for either limit of text switches that way of finding off."""
        self._cache: SegmentedCache[_RecordKey, _Record] = SegmentedCache(
            max_bytes=max_bytes, max_entries=max_entries, on_removal=self._unfile
        )
        self._max_whole_text = max_whole_text
        self._max_resumed_text = max_resumed_text
        self._probes: dict[_Probe, list[_RecordKey]] = {}
        self._next_number = 0

    def get(self, namespace: Namespace, text: str) -> TokenIds | None:
        """The ids of exactly this text."""
        if len(text) <= self._max_whole_text:
            if len(text) < MIN_CUT_CHARS:
                return self._get_by_text(namespace, text)
            for key in self._probes.get((namespace, -len(text), text[-_PROBE_CHARS:]), ()):
                record = self._cache.peek(key)
                if record is not None and record.text == text:
                    self._cache.get(key)
                    return record.encoded.token_ids
        return None

    def _get_by_text(self, namespace: Namespace, text: str) -> TokenIds | None:
        record = self._cache.get((namespace, text))
        return None if record is None else record.encoded.token_ids

    def resume(self, namespace: Namespace, text: str) -> Resume | None:
        """The longest known beginning of `text` that a few comparisons find."""
        if not MIN_CUT_CHARS < len(text) <= self._max_resumed_text:
            return None
        best: tuple[int, int, _RecordKey, _Record] | None = None
        for key in self._similar(namespace, text):
            record = self._cache.peek(key)
            if record is None or (num_shared := record.shared(text)) == 0:
                continue
            start = record.encoded.cuts[num_shared - 1][0]
            if best is None or start > best[0]:
                best = (start, num_shared, key, record)
            if num_shared == len(record.encoded.cuts):
                break  # others can hardly know more
        if best is None:
            return None
        start, num_shared, key, record = best
        self._cache.get(key)
        cuts = record.encoded.cuts
        token_ids = record.encoded.token_ids[: cuts[num_shared - 1][1]]
        return Resume(start, token_ids, cuts[:num_shared], key, is_whole=num_shared == len(cuts))

    def put(self, namespace: Namespace, text: str, encoded: EncodedText, *, resumed: Resume | None = None) -> None:
        """Keep `encoded`, which continues `resumed`."""
        is_whole = self._may_be_found_whole(text)
        is_resumable = bool(encoded.cuts) and encoded.cuts[-1][0] >= MIN_CUT_CHARS
        is_resumable = is_resumable and len(text) <= self._max_resumed_text
        if not is_whole and not is_resumable:
            return
        if not is_resumable:
            encoded = EncodedText(encoded.token_ids)
        key: _RecordKey = (namespace, text)
        if len(text) >= MIN_CUT_CHARS:
            key = (namespace, self._next_number)
            self._next_number += 1
        probes = tuple(_probes(namespace, text, encoded, is_whole=is_whole)) if len(text) >= MIN_CUT_CHARS else ()
        record = _Record(text, encoded, probes)
        replaces = resumed.key if resumed is not None and resumed.is_whole else None
        self._cache.put(key, record, num_bytes=record.num_bytes, replaces=replaces)
        if key in self._cache:
            self._file(key, record)

    def _may_be_found_whole(self, text: str) -> bool:
        """By what the text takes in memory: its UTF-8 size takes long to count."""
        num_bytes = len(text) if text.isascii() else sys.getsizeof(text) - _STR_NUM_BYTES
        return num_bytes <= self._max_whole_text

    def statistics(self) -> CacheStatistics:
        return self._cache.statistics()

    def __len__(self) -> int:
        return len(self._cache)

    def __repr__(self) -> str:
        return f"Records({self._cache!r}, num_probes={len(self._probes)})"

    def _similar(self, namespace: Namespace, text: str) -> Iterator[_RecordKey]:
        """Records that may begin like `text`, those that share most of it first."""
        seen: set[_RecordKey] = set()
        for depth in _depths(len(text), deepest_first=True):
            for key in reversed(self._probes.get((namespace, depth, text[depth - _PROBE_CHARS : depth]), ())):
                if key not in seen and len(seen) < _MAX_COMPARED:
                    seen.add(key)
                    yield key

    def _file(self, key: _RecordKey, record: _Record) -> None:
        for probe in record.probes:
            keys = self._probes.get(probe)
            if keys is None:
                self._probes[probe] = [key]
            else:
                keys.append(key)
                if len(keys) > _MAX_PER_PROBE:
                    del keys[0]

    def _unfile(self, key: _RecordKey, record: _Record) -> None:
        for probe in record.probes:
            keys = self._probes.get(probe)
            if keys is not None and key in keys:
                keys.remove(key)
                if not keys:
                    del self._probes[probe]


def _probes(namespace: Namespace, text: str, encoded: EncodedText, *, is_whole: bool) -> Iterator[_Probe]:
    """Under what a record is filed; the end of the text, at a negative depth, finds it whole."""
    if is_whole and len(text) >= MIN_CUT_CHARS:
        yield namespace, -len(text), text[-_PROBE_CHARS:]
    if encoded.cuts:
        for depth in _depths(encoded.cuts[-1][0]):
            yield namespace, depth, text[depth - _PROBE_CHARS : depth]


def _depths(num_chars: int, *, deepest_first: bool = False) -> list[int]:
    """Powers of two from 2048 up to `num_chars`."""
    exponents = range(MIN_CUT_CHARS.bit_length() - 1, num_chars.bit_length())
    return [1 << exponent for exponent in (reversed(exponents) if deepest_first else exponents)]
