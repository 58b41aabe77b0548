"""What a KV cache tells the outside of its blocks: vLLM's events, as values and as the bytes of its present wire form.

A batch is an array, an event a map with its `type`. Hashes go out as the last eight bytes of the digest, a number, or
whole. Pure: `KVEventLog` collects, somebody else publishes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from headrace.engine.lora_request import LoRARequest
from headrace.prefix_hash import BlockHash, external_hash

EventHash: TypeAlias = int | bytes

EventKey: TypeAlias = str
"""What beside its tokens makes a block's content, without the kind of key and without an adapter's path."""

MEDIUM = "GPU"
"""The engine's own cache on whatever device, as opposed to a tier behind it; routers look for this word."""

_GROUP = 0
"""All layers share one block table here."""


class KVCacheEvent(msgspec.Struct, tag=True, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One of the events below."""


class BlockStored(KVCacheEvent, frozen=True, kw_only=True, gc=False):
    """Neighbouring blocks of one request can be found from now on."""

    block_hashes: list[EventHash]
    parent_block_hash: EventHash | None
    """Of the block before the first one; None at the start of a prompt."""
    token_ids: list[int]
    """Of these blocks, one after the other."""
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[EventKey, ...] | None] | None = None
    """One for each block."""
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None


class BlockRemoved(KVCacheEvent, frozen=True, kw_only=True, gc=False):
    """These blocks cannot be found any more."""

    block_hashes: list[EventHash]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class AllBlocksCleared(KVCacheEvent, frozen=True, kw_only=True, gc=False):
    """No block can be found any more."""


AnyKVCacheEvent: TypeAlias = BlockStored | BlockRemoved | AllBlocksCleared


class KVEventBatch(msgspec.Struct, array_like=True, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What one step changed, in order."""

    ts: float
    """Seconds since the epoch."""
    events: list[AnyKVCacheEvent]
    data_parallel_rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockContent:
    """What a request's blocks hold."""

    token_ids: Sequence[int]
    lora: LoRARequest | None = None
    cache_salt: str | None = None

    def keys_of(self, block: int) -> tuple[EventKey, ...] | None:
        """The extra keys of the request's block number `block`, in the order in which they are hashed."""
        lora = (self.lora.lora_name,) if self.lora is not None else ()
        salt = (self.cache_salt,) if self.cache_salt is not None and block == 0 else ()
        return (*lora, *salt) or None


class KVEventLog:
    """Collects events until somebody takes them."""

    def __init__(self, *, block_size: int, use_int_hashes: bool) -> None:
        self._block_size = block_size
        self._use_int_hashes = use_int_hashes
        self._events: list[AnyKVCacheEvent] = []

    def __repr__(self) -> str:
        return f"KVEventLog({len(self._events)} events)"

    def stored(self, blocks: range, hashes: Sequence[BlockHash], content: BlockContent) -> None:
        """Blocks `blocks` of a request with these hashes were named."""
        tokens = content.token_ids[blocks.start * self._block_size : blocks.stop * self._block_size]
        self._events.append(
            BlockStored(
                block_hashes=[self._named(hashes[block]) for block in blocks],
                parent_block_hash=self._named(hashes[blocks.start - 1]) if blocks.start > 0 else None,
                token_ids=list(tokens),
                block_size=self._block_size,
                lora_id=content.lora.lora_int_id if content.lora is not None else None,
                medium=MEDIUM,
                lora_name=content.lora.lora_name if content.lora is not None else None,
                extra_keys=[content.keys_of(block) for block in blocks],
                group_idx=_GROUP,
            )
        )

    def removed(self, block_hash: BlockHash) -> None:
        """The block lost its name; neighbours in time share an event."""
        named = self._named(block_hash)
        last = self._events[-1] if self._events else None
        if isinstance(last, BlockRemoved):
            last.block_hashes.append(named)
        else:
            self._events.append(BlockRemoved(block_hashes=[named], medium=MEDIUM, group_idx=_GROUP))

    def cleared(self) -> None:
        self._events.append(AllBlocksCleared())

    def take(self) -> list[AnyKVCacheEvent]:
        """What happened since the last time, oldest first."""
        taken, self._events = self._events, []
        return taken

    def _named(self, block_hash: BlockHash) -> EventHash:
        return external_hash(block_hash) if self._use_int_hashes else bytes(block_hash)
