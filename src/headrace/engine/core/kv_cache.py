"""Which request holds which block of the paged KV cache, and which blocks hold a prefix worth keeping. No tensors here.

Rules:
1. A block is held (reference count > 0) or free. Free blocks are blank, or they keep a computed prefix and a hash.
2. A hash names at most one block. Only whole, computed blocks get one (`publish`), and they never change afterwards.
3. A block has two holders only through its hash: the second found it with `find_prefix`.
4. Blank blocks are taken first; then cached ones, least recently used first. A request gives its blocks back last
   block first, so that a prefix outlives what follows it.
5. Of several blocks that came to hold the same prefix, because their requests ran together, one has the hash. When its
   last holder leaves, the hash moves to one that is still held: so a free cached block has no held block behind it, and
   what is evicted is always the end of a prefix.
6. Every method either does all of its change or none.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.engine.kv_events.events import BlockContent, KVEventLog
from headrace.prefix_hash import BlockHash


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCacheStatistics:
    """Counts of blocks."""

    num_blocks: int
    num_free_blocks: int
    """Held by no request; cached ones among them."""
    num_cached_blocks: int
    """With a hash, free or held."""


class KVCacheBlocks:
    """The blocks of one KV cache and the block tables of the requests that hold them."""

    def __init__(
        self,
        num_blocks: int,
        *,
        block_size: int,
        enable_prefix_caching: bool = True,
        events: KVEventLog | None = None,
    ) -> None:
        """`events` is told of every hash that comes or goes."""
        if num_blocks < 1:
            raise ValueError(f"num_blocks is {num_blocks}; a KV cache has at least one block")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self._num_holders = [0] * num_blocks
        self._hash_of: list[BlockHash | None] = [None] * num_blocks
        self._block_of: dict[BlockHash, int] = {}
        self._twins: dict[BlockHash, list[int]] = {}  # held blocks without a hash that hold what the named one holds
        self._hash_as_twin: dict[int, BlockHash] = {}
        self._blank = list(range(num_blocks - 1, -1, -1))
        self._cached_free: dict[int, None] = {}  # insertion order is the order of eviction
        self._tables: dict[str, list[int]] = {}
        self._num_published: dict[str, int] = {}
        self._events = events

    def __repr__(self) -> str:
        return (
            f"KVCacheBlocks({self.num_free_blocks}/{self.num_blocks} free, {len(self._block_of)} cached, "
            f"{len(self._tables)} requests)"
        )

    @property
    def num_free_blocks(self) -> int:
        return len(self._blank) + len(self._cached_free)

    @property
    def num_cached_blocks(self) -> int:
        """Blocks with a hash, free or held."""
        return len(self._block_of)

    @property
    def tells_events(self) -> bool:
        return self._events is not None

    @property
    def num_slots(self) -> int:
        """Tokens that the whole cache holds."""
        return self.num_blocks * self.block_size

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def find_prefix(self, hashes: Sequence[BlockHash], *, num_tokens: int) -> list[int]:
        """The blocks of the longest cached prefix of a request of `num_tokens` tokens with these block hashes.

        Never the whole request: at least one token is left to compute, since only computing yields logits.
        """
        found: list[int] = []
        if self.enable_prefix_caching:
            for block_hash in hashes[: (num_tokens - 1) // self.block_size]:
                block = self._block_of.get(block_hash)
                if block is None:
                    break
                found.append(block)
        return found

    def can_open(self, prefix: Sequence[int], *, num_tokens: int, num_reserved: int = 0) -> bool:
        """Whether a request of `num_tokens` could take `prefix` and all its other blocks and leave `num_reserved`."""
        num_taken = self.num_blocks_for(num_tokens) - len(prefix) + sum(b in self._cached_free for b in prefix)
        return num_taken + num_reserved <= self.num_free_blocks

    def open(self, request_id: str, *, prefix: Sequence[int] = ()) -> None:
        """Start a block table with the blocks of `find_prefix`, which are held from now on."""
        assert request_id not in self._tables, f"{request_id} has a block table already"
        for block in prefix:
            self._cached_free.pop(block, None)
            self._num_holders[block] += 1
        self._tables[request_id] = list(prefix)
        self._num_published[request_id] = len(prefix)

    def grow(self, request_id: str, *, num_tokens: int) -> tuple[int, ...] | None:
        """Give the request blocks up to `num_tokens` tokens: the new ones; None, and no change, if too few are free."""
        table = self._tables[request_id]
        num_new = self.num_blocks_for(num_tokens) - len(table)
        if num_new <= 0:
            return ()
        if num_new > self.num_free_blocks:
            return None
        new = tuple(self._take() for _ in range(num_new))
        table.extend(new)
        return new

    def num_unpublished(self, request_id: str, *, num_computed_tokens: int) -> int:
        """Whole computed blocks of the request that `publish` has not seen."""
        if not self.enable_prefix_caching:
            return 0
        return num_computed_tokens // self.block_size - self._num_published[request_id]

    def publish(
        self,
        request_id: str,
        hashes: Sequence[BlockHash],
        *,
        num_computed_tokens: int,
        content: BlockContent | None = None,
    ) -> None:
        """Let later requests find the request's whole blocks, whose tokens are computed now.

        `hashes` covers at least those blocks; `content`, which only events need, what they hold.
        """
        if not self.enable_prefix_caching:
            return
        table = self._tables[request_id]
        num_whole = num_computed_tokens // self.block_size
        unpublished = range(self._num_published[request_id], num_whole)
        new = [index for index in unpublished if self._name(table[index], hashes[index])]
        self._num_published[request_id] = num_whole
        if self._events is not None and content is not None:
            for blocks in _runs(new):
                self._events.stored(blocks, hashes, content)

    def close(self, request_id: str) -> None:
        """Give all blocks of the request back; named ones stay cached until their place is needed."""
        del self._num_published[request_id]
        for block in reversed(self._tables.pop(request_id)):
            self._num_holders[block] -= 1
            if self._num_holders[block] == 0:
                self._free(block)

    def reset(self) -> bool:
        """Forget all cached prefixes. False, with no change, while any request holds a block."""
        if self._tables:
            return False
        for block in self._cached_free:
            self._hash_of[block] = None
        self._blank.extend(self._cached_free)
        self._cached_free.clear()
        self._block_of.clear()
        if self._events is not None:
            self._events.cleared()
        return True

    def block_table(self, request_id: str) -> tuple[int, ...]:
        """The blocks of an open request, in the order of its tokens."""
        return tuple(self._tables[request_id])

    def statistics(self) -> KVCacheStatistics:
        return KVCacheStatistics(
            num_blocks=self.num_blocks,
            num_free_blocks=self.num_free_blocks,
            num_cached_blocks=len(self._block_of),
        )

    def check_integrity(self) -> None:
        """Assert the rules at the top of this module. For tests, and for an engine that is idle: walks all blocks."""
        num_holders = [0] * self.num_blocks
        for table in self._tables.values():
            assert len(set(table)) == len(table), f"a block stands twice in a table: {table}"
            for block in table:
                num_holders[block] += 1
        assert num_holders == self._num_holders, "reference counts differ from the block tables"
        free = [*self._blank, *self._cached_free]
        assert len(set(free)) == len(free), "a block is free twice"
        assert {b for b in range(self.num_blocks) if num_holders[b] == 0} == set(free), "free and held do not add up"
        assert all(self._hash_of[b] is None for b in self._blank), "a blank block has a hash"
        assert all(self._hash_of[b] is not None for b in self._cached_free), "a cached block has no hash"
        named = {block_hash: b for b, block_hash in enumerate(self._hash_of) if block_hash is not None}
        assert named == self._block_of, "the index of hashes differs from the blocks' hashes"
        twins = {block: block_hash for block_hash, blocks in self._twins.items() for block in blocks}
        assert twins == self._hash_as_twin, "the two indexes of twins differ"
        assert all(num_holders[b] == 1 and self._hash_of[b] is None for b in twins), "a twin is free, shared or named"
        assert all(num_holders[self._block_of[h]] > 0 for h in self._twins), "a twin is held, the named block is free"
        assert all(count < 2 or self._hash_of[b] is not None for b, count in enumerate(num_holders)), (
            "a block without a hash has two holders"
        )

    def _take(self) -> int:
        if self._blank:
            block = self._blank.pop()
        else:
            block = next(iter(self._cached_free))
            del self._cached_free[block]
            self._unname(block)
        self._num_holders[block] = 1
        return block

    def _free(self, block: int) -> None:
        """Take back a block that its last holder has left."""
        block_hash = self._hash_of[block]
        if block_hash is None:
            self._forget_twin(block)
            self._blank.append(block)
        elif (twin := self._pop_twin(block_hash)) is not None:
            self._move_name(block_hash, block, twin)
        else:
            self._cached_free[block] = None

    def _name(self, block: int, block_hash: BlockHash) -> bool:
        """Give a held block the hash of its content; False if that content was cached before."""
        named = self._block_of.get(block_hash)
        if named is None:
            self._block_of[block_hash] = block
            self._hash_of[block] = block_hash
            return True
        if self._num_holders[named] == 0:
            del self._cached_free[named]
            self._move_name(block_hash, named, block)
        elif named != block:
            self._twins.setdefault(block_hash, []).append(block)
            self._hash_as_twin[block] = block_hash
        return False

    def _move_name(self, block_hash: BlockHash, old: int, new: int) -> None:
        """From a block that nobody holds, which is blank then, to one that is held."""
        self._hash_of[old] = None
        self._blank.append(old)
        self._hash_of[new] = block_hash
        self._block_of[block_hash] = new

    def _pop_twin(self, block_hash: BlockHash) -> int | None:
        twins = self._twins.get(block_hash)
        if not twins:
            return None
        twin = twins[0]
        self._forget_twin(twin)
        return twin

    def _forget_twin(self, block: int) -> None:
        block_hash = self._hash_as_twin.pop(block, None)
        if block_hash is None:
            return
        self._twins[block_hash].remove(block)
        if not self._twins[block_hash]:
            del self._twins[block_hash]

    def _unname(self, block: int) -> None:
        evicted = self._hash_of[block]
        assert evicted is not None
        del self._block_of[evicted]
        self._hash_of[block] = None
        if self._events is not None:
            self._events.removed(evicted)


def _runs(indexes: Sequence[int]) -> list[range]:
    """Ascending numbers as ranges of neighbours."""
    runs: list[range] = []
    for index in indexes:
        if runs and runs[-1].stop == index:
            runs[-1] = range(runs[-1].start, index + 1)
        else:
            runs.append(range(index, index + 1))
    return runs
