"""KV events into the prefix index: engines' names for blocks become chains of our own hashes. Pure.

The events carry the tokens, so it does not matter what an engine hashes with, nor with which seed. What stands in
another medium than the engine's own cache, or belongs to a further group of layers, does not count as cached.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.gateway.kv_events.wire import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch
from headrace.gateway.prefix_index import ChainHashers, Holder, PrefixIndex, StoredBlocks, digest_of
from headrace.tokenization.tokenizer import pack_token_ids

_OWN_MEDIA = frozenset({None, "GPU"})
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedStatistics:
    """Events of one source so far."""

    num_stored: int
    num_removed: int
    num_cleared: int
    num_passed_over: int
    """Of other media and groups, of unknown kinds, and such as contradict themselves."""


class EventSink:
    """Applies one source's events to one holder. `on_block_size` is told how large its blocks are."""

    def __init__(
        self, index: PrefixIndex, hashers: ChainHashers, holder: Holder, *, on_block_size: Callable[[int], None]
    ) -> None:
        self._index = index
        self._hashers = hashers
        self._on_block_size = on_block_size
        self.holder = holder
        self._num_stored = 0
        self._num_removed = 0
        self._num_cleared = 0
        self._num_passed_over = 0

    def apply(self, batch: EventBatch) -> None:
        """All events of a batch, in order."""
        self._num_passed_over += batch.num_unknown
        for event in batch.events:
            if isinstance(event, AllBlocksCleared):
                self.clear()
            elif event.medium not in _OWN_MEDIA or event.group_idx:
                self._num_passed_over += 1
            elif isinstance(event, BlockStored):
                self._store(event)
            else:
                self._remove(event)

    def clear(self) -> None:
        """The cache is empty, or nothing is known of it any more."""
        self._num_cleared += 1
        self._index.clear(self.holder)

    def statistics(self) -> AppliedStatistics:
        return AppliedStatistics(
            num_stored=self._num_stored,
            num_removed=self._num_removed,
            num_cleared=self._num_cleared,
            num_passed_over=self._num_passed_over,
        )

    def __repr__(self) -> str:
        return f"EventSink({self.holder.name}, num_stored={self._num_stored}, num_removed={self._num_removed})"

    def _store(self, event: BlockStored) -> None:
        num_blocks = len(event.block_hashes)
        is_sound = event.block_size >= 1 and len(event.token_ids) == num_blocks * event.block_size
        if not is_sound or not _are_ids(event.token_ids):
            self._num_passed_over += 1
            return
        hasher = self._hashers.of(event.block_size)
        adapter = event.lora_name or ("" if event.lora_id is None else f"lora {event.lora_id}")
        own: list[int] = hasher.blocks(pack_token_ids(event.token_ids)).tolist()
        for at, keys in enumerate(event.extra_keys or ()):
            if keys and at < num_blocks:
                own[at] = (own[at] + _digest_of_keys(keys, lora_name=event.lora_name)) & _MASK
        stored = StoredBlocks(
            names=event.block_hashes,
            parent=event.parent_block_hash,
            start=hasher.start(adapter),
            own_hashes=own,
        )
        self._index.add_blocks(self.holder, stored, hasher)
        self._on_block_size(event.block_size)
        self._num_stored += num_blocks

    def _remove(self, event: BlockRemoved) -> None:
        for name in event.block_hashes:
            self._index.remove_block(self.holder, name)
        self._num_removed += len(event.block_hashes)


def _are_ids(token_ids: Sequence[int]) -> bool:
    return not token_ids or (min(token_ids) >= 0 and max(token_ids) <= np.iinfo(np.uint32).max)


def _digest_of_keys(keys: Sequence[object], *, lora_name: str | None) -> int:
    """What is in a block beside its tokens. The adapter starts the chain and is left out; a salt is a bare text."""
    others = [key for key in keys if key != lora_name]
    return sum(digest_of(key if isinstance(key, str) else repr(key)) for key in others) & _MASK
