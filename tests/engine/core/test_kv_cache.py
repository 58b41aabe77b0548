"""Blocks are held, shared, kept and evicted by the rules at the top of kv_cache.py."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.engine.core.kv_cache import KVCacheBlocks
from headrace.prefix_hash import BlockHasher

BLOCK_SIZE = 4
HASHER = BlockHasher(BLOCK_SIZE)


def fill(cache: KVCacheBlocks, request_id: str, tokens: list[int]) -> tuple[int, ...]:
    """Open, grow and publish a request as a step that computes all its tokens would; its block table."""
    hashes = HASHER.hash_prompt(tokens)
    cache.open(request_id, prefix=cache.find_prefix(hashes, num_tokens=len(tokens)))
    assert cache.grow(request_id, num_tokens=len(tokens)) is not None
    cache.publish(request_id, hashes, num_computed_tokens=len(tokens))
    return cache.block_table(request_id)


def find(cache: KVCacheBlocks, tokens: list[int]) -> list[int]:
    return cache.find_prefix(HASHER.hash_prompt(tokens), num_tokens=len(tokens))


def test_a_request_holds_as_many_blocks_as_its_tokens_need() -> None:
    cache = KVCacheBlocks(8, block_size=BLOCK_SIZE)
    cache.open("a")
    assert cache.grow("a", num_tokens=0) == ()
    assert len(cache.grow("a", num_tokens=5) or ()) == 2
    assert cache.grow("a", num_tokens=8) == ()
    assert len(cache.grow("a", num_tokens=9) or ()) == 1
    assert cache.num_free_blocks == 5


def test_growth_that_does_not_fit_changes_nothing() -> None:
    cache = KVCacheBlocks(3, block_size=BLOCK_SIZE)
    cache.open("a")
    cache.grow("a", num_tokens=8)
    assert cache.grow("a", num_tokens=100) is None
    assert len(cache.block_table("a")) == 2
    assert cache.num_free_blocks == 1


def test_a_published_prefix_is_found_and_shared() -> None:
    cache = KVCacheBlocks(8, block_size=BLOCK_SIZE)
    first = fill(cache, "a", [1, 2, 3, 4, 5, 6, 7, 8, 9])
    second = fill(cache, "b", [1, 2, 3, 4, 5, 6, 7, 8, 10])
    assert second[:2] == first[:2]
    assert second[2] != first[2]
    assert cache.num_free_blocks == 4


def test_the_whole_prompt_is_never_a_hit() -> None:
    cache = KVCacheBlocks(8, block_size=BLOCK_SIZE)
    table = fill(cache, "a", [1, 2, 3, 4, 5, 6, 7, 8])
    assert find(cache, [1, 2, 3, 4, 5, 6, 7, 8]) == [table[0]]
    assert find(cache, [1, 2, 3, 4, 5, 6, 7, 8, 9]) == list(table)


def test_a_block_is_not_found_before_it_is_published() -> None:
    cache = KVCacheBlocks(8, block_size=BLOCK_SIZE)
    cache.open("a")
    cache.grow("a", num_tokens=8)
    assert find(cache, [1, 2, 3, 4, 5, 6, 7, 8, 9]) == []
    cache.publish("a", HASHER.hash_prompt([1, 2, 3, 4, 5, 6, 7, 8]), num_computed_tokens=6)
    assert find(cache, [1, 2, 3, 4, 5, 6, 7, 8, 9]) == [cache.block_table("a")[0]]


def test_a_prefix_outlives_its_request() -> None:
    cache = KVCacheBlocks(8, block_size=BLOCK_SIZE)
    table = fill(cache, "a", [1, 2, 3, 4, 5])
    cache.close("a")
    assert cache.num_free_blocks == 8
    assert find(cache, [1, 2, 3, 4, 9]) == [table[0]]


def test_blank_blocks_are_taken_before_cached_ones() -> None:
    cache = KVCacheBlocks(4, block_size=BLOCK_SIZE)
    fill(cache, "a", [1, 2, 3, 4])
    cache.close("a")
    cache.open("b")
    cache.grow("b", num_tokens=12)
    assert len(find(cache, [1, 2, 3, 4, 5])) == 1


def test_the_end_of_a_prefix_is_evicted_before_its_start() -> None:
    cache = KVCacheBlocks(3, block_size=BLOCK_SIZE)
    tokens = list(range(12))
    table = fill(cache, "a", tokens)
    cache.close("a")
    for num_left in (2, 1, 0):
        cache.open(f"b{num_left}")
        cache.grow(f"b{num_left}", num_tokens=1)
        assert find(cache, [*tokens, 99]) == list(table[:num_left])


def test_the_least_recently_used_prefix_is_evicted_first() -> None:
    cache = KVCacheBlocks(2, block_size=BLOCK_SIZE)
    fill(cache, "old", [1, 1, 1, 1])
    fill(cache, "new", [2, 2, 2, 2])
    cache.close("old")
    cache.close("new")
    cache.open("user", prefix=find(cache, [1, 1, 1, 1, 0]))
    cache.close("user")
    cache.open("taker")
    cache.grow("taker", num_tokens=1)
    assert find(cache, [2, 2, 2, 2, 0]) == []
    assert len(find(cache, [1, 1, 1, 1, 0])) == 1


def test_a_held_prefix_is_not_evicted() -> None:
    cache = KVCacheBlocks(2, block_size=BLOCK_SIZE)
    table = fill(cache, "a", [1, 2, 3, 4])
    cache.open("b")
    cache.grow("b", num_tokens=4)
    assert cache.grow("b", num_tokens=5) is None
    assert find(cache, [1, 2, 3, 4, 5]) == list(table)


def test_can_open_counts_cached_blocks_that_it_would_take() -> None:
    cache = KVCacheBlocks(3, block_size=BLOCK_SIZE)
    fill(cache, "a", [1, 2, 3, 4, 5, 6, 7, 8])
    prefix = find(cache, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert cache.can_open(prefix, num_tokens=12)
    assert not cache.can_open(prefix, num_tokens=13)
    cache.close("a")
    assert cache.can_open(prefix, num_tokens=12)
    assert not cache.can_open(prefix, num_tokens=13)
    assert not cache.can_open(prefix, num_tokens=12, num_reserved=1)


def test_without_prefix_caching_nothing_is_found() -> None:
    cache = KVCacheBlocks(4, block_size=BLOCK_SIZE, enable_prefix_caching=False)
    fill(cache, "a", [1, 2, 3, 4])
    assert find(cache, [1, 2, 3, 4, 5]) == []
    assert cache.statistics().num_cached_blocks == 0


def test_reset_forgets_prefixes_only_when_nothing_is_held() -> None:
    cache = KVCacheBlocks(4, block_size=BLOCK_SIZE)
    fill(cache, "a", [1, 2, 3, 4])
    assert cache.reset() is False
    assert len(find(cache, [1, 2, 3, 4, 5])) == 1
    cache.close("a")
    assert cache.reset() is True
    assert find(cache, [1, 2, 3, 4, 5]) == []
    cache.check_integrity()


def test_the_first_of_two_equal_prefixes_leaves_its_name_to_the_one_still_held() -> None:
    cache = KVCacheBlocks(8, block_size=BLOCK_SIZE)
    tokens = [1, 2, 3, 4, 5, 6, 7, 8]
    for name in "ab":  # they run together, so that neither finds the other's blocks
        cache.open(name)
        cache.grow(name, num_tokens=8)
    cache.publish("a", HASHER.hash_prompt(tokens), num_computed_tokens=4)
    cache.publish("b", HASHER.hash_prompt(tokens), num_computed_tokens=8)
    of_b = list(cache.block_table("b"))
    cache.close("a")
    cache.check_integrity()
    assert find(cache, [*tokens, 9]) == of_b
    cache.close("b")
    cache.open("taker")
    cache.grow("taker", num_tokens=7 * BLOCK_SIZE)
    assert find(cache, [*tokens, 9]) == of_b[:1]


def test_a_prefix_computed_again_takes_the_name_from_a_free_block() -> None:
    cache = KVCacheBlocks(8, block_size=BLOCK_SIZE)
    fill(cache, "a", [1, 2, 3, 4])
    cache.close("a")
    cache.open("b")  # does not look for a prefix
    cache.grow("b", num_tokens=4)
    cache.publish("b", HASHER.hash_prompt([1, 2, 3, 4]), num_computed_tokens=4)
    cache.check_integrity()
    assert find(cache, [1, 2, 3, 4, 5]) == list(cache.block_table("b"))


def test_a_cache_has_blocks() -> None:
    with pytest.raises(ValueError, match="num_blocks is 0"):
        KVCacheBlocks(0, block_size=4)


def test_integrity_notices_a_lost_block() -> None:
    cache = KVCacheBlocks(4, block_size=BLOCK_SIZE)
    fill(cache, "a", [1, 2, 3, 4])
    cache._tables["a"].pop()
    with pytest.raises(AssertionError, match="reference counts"):
        cache.check_integrity()


class CacheMachine(RuleBasedStateMachine):
    """Any order of operations keeps the rules, and what is found is what was published and not yet overwritten."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = KVCacheBlocks(7, block_size=BLOCK_SIZE)
        self.tokens: dict[str, list[int]] = {}
        self.content: dict[int, tuple[int, ...]] = {}
        self.num_opened = 0

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=20))
    def open(self, tokens: list[int]) -> None:
        prefix = find(self.cache, tokens)
        for index, block in enumerate(prefix):
            assert self.content[block] == tuple(tokens[: (index + 1) * BLOCK_SIZE]), "a found block holds other tokens"
        fits = self.cache.can_open(prefix, num_tokens=len(tokens))
        request_id = str(self.num_opened)
        self.num_opened += 1
        self.cache.open(request_id, prefix=prefix)
        grown = self.cache.grow(request_id, num_tokens=len(tokens))
        assert (grown is not None) == fits
        if grown is None:
            self.cache.close(request_id)
        else:
            self.tokens[request_id] = tokens
            self._write(request_id)

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=20))
    def open_unseeing(self, tokens: list[int]) -> None:
        """A request that does not read the cache, as one that wants its prompt's logprobs."""
        request_id = str(self.num_opened)
        self.num_opened += 1
        self.cache.open(request_id)
        if self.cache.grow(request_id, num_tokens=len(tokens)) is None:
            self.cache.close(request_id)
        else:
            self.tokens[request_id] = tokens
            self._write(request_id)

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), more=st.lists(st.integers(0, 1), min_size=1, max_size=6))
    def extend(self, data: st.DataObject, more: list[int]) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.tokens)))
        tokens = self.tokens[request_id] + more
        if self.cache.grow(request_id, num_tokens=len(tokens)) is not None:
            self.tokens[request_id] = tokens
            self._write(request_id)

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.tokens)))
        del self.tokens[request_id]
        self.cache.close(request_id)

    @rule()
    def reset(self) -> None:
        assert self.cache.reset() == (not self.tokens)

    @invariant()
    def keeps_its_rules(self) -> None:
        self.cache.check_integrity()
        held = {block for request_id in self.tokens for block in self.cache.block_table(request_id)}
        assert self.cache.num_free_blocks == self.cache.num_blocks - len(held)
        for request_id, tokens in self.tokens.items():
            for index, block in enumerate(self.cache.block_table(request_id)):
                assert self.content[block] == tuple(tokens[: (index + 1) * BLOCK_SIZE]), "a held block was overwritten"

    @invariant()
    def evicts_only_the_ends_of_prefixes(self) -> None:
        for block, block_hash in enumerate(self.cache._hash_of):
            parent = tuple(self.content.get(block, ()))[:-BLOCK_SIZE]
            if block_hash is not None and parent:
                assert HASHER.hash_prompt(parent)[-1] in self.cache._block_of, "a block outlived the one before it"

    def _write(self, request_id: str) -> None:
        tokens = self.tokens[request_id]
        for index, block in enumerate(self.cache.block_table(request_id)):
            self.content[block] = tuple(tokens[: (index + 1) * BLOCK_SIZE])
        self.cache.publish(request_id, HASHER.hash_prompt(tokens), num_computed_tokens=len(tokens))


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
