"""The index against a dictionary: for every cache the set of hashes that it has, looked through block by block."""

from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.gateway.prefix_index import Chain, ChainHasher, Held, Holder, Path, PrefixIndex, StoredBlocks, chain_of

HASHER = ChainHasher(1)
START = HASHER.start()
PROMPTS = st.lists(st.integers(0, 2), max_size=9)
"""Few different blocks, so that prompts share and branch."""


def chain_for(blocks: Sequence[int]) -> Chain:
    hashes, last = [], START
    for block in blocks:
        last = HASHER.follow(last, block)
        hashes.append(last)
    return chain_of(hashes)


def index_of(max_bytes: int = 1 << 30) -> PrefixIndex:
    return PrefixIndex(max_bytes=max_bytes)


def stored(blocks: Sequence[int], first: int = 0) -> StoredBlocks:
    """The event that blocks from number `first` on stand in a cache; engines name them by their own hashes, doubled."""
    names = [hash_ * 2 for hash_ in chain_for(blocks)]
    parent = names[first - 1] if first else None
    return StoredBlocks(names=names[first:], parent=parent, start=START, own_hashes=blocks[first:])


def held(index: PrefixIndex, holder: Holder, blocks: Sequence[int], *, now: float = 0.0) -> Held:
    return index.held(index.follow(chain_for(blocks)), holder, now=now)


class AgainstDictionary(RuleBasedStateMachine):
    """Events, decisions and answers in any order; the index never forgets for want of room."""

    def __init__(self) -> None:
        super().__init__()
        self.index = index_of()
        self.holders = [self.index.add_holder(name) for name in "abc"]
        self.counts: list[dict[int, int]] = [{} for _ in self.holders]
        """By hash, how many copies events have told of; of the last holder, what it has answered."""
        self.expected: list[set[int]] = [set() for _ in self.holders]
        self.prompts: set[tuple[int, ...]] = {()}
        self.sent: list[tuple[Chain, Path]] = []
        """To the last holder, and not answered yet."""

    @rule(which=st.integers(0, 1), blocks=PROMPTS, data=st.data())
    def store_by_event(self, which: int, blocks: list[int], data: st.DataObject) -> None:
        counts = self.counts[which]
        hashes = chain_for(blocks).tolist()
        first = data.draw(st.integers(0, len(blocks)))
        if blocks[first:]:
            self.index.add_blocks(self.holders[which], stored(blocks, first), HASHER)
        self.prompts.add(tuple(blocks))
        if first == 0 or counts.get(hashes[first - 1]):
            for one in hashes[first:]:
                counts[one] = counts.get(one, 0) + 1

    @rule(which=st.integers(0, 1), data=st.data())
    def remove_by_event(self, which: int, data: st.DataObject) -> None:
        known = {one for prompt in self.prompts for one in chain_for(prompt).tolist()}
        one = data.draw(st.sampled_from(sorted(known | {7})))
        self.index.remove_block(self.holders[which], one * 2)
        self.counts[which][one] = max(0, self.counts[which].get(one, 0) - 1)

    @rule(which=st.integers(0, 2))
    def clear(self, which: int) -> None:
        self.index.clear(self.holders[which])
        self.counts[which].clear()
        self.expected[which].clear()

    @rule(which=st.integers(0, 2))
    def lose(self, which: int) -> None:
        self.index.remove_holder(self.holders[which])
        self.holders[which] = self.index.add_holder("new")
        self.counts[which].clear()
        self.expected[which].clear()

    @rule(which=st.integers(0, 2), blocks=PROMPTS, was_followed=st.booleans())
    def expect(self, which: int, blocks: list[int], was_followed: bool) -> None:
        chain = chain_for(blocks)
        path = self.index.follow(chain) if was_followed else None
        path = self.index.expect(self.holders[which], chain, until_s=10.0, path=path)
        assert path is not None
        if which == 2:
            self.sent.append((chain, path))
        self.expected[which] |= set(chain)
        self.prompts.add(tuple(blocks))

    @rule(blocks=PROMPTS)
    def answer(self, blocks: list[int]) -> None:
        self.index.store(self.holders[2], chain_for(blocks), now=1.0)
        self.counts[2] |= dict.fromkeys(chain_for(blocks), 1)
        self.prompts.add(tuple(blocks))

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def answer_what_was_sent(self, data: st.DataObject) -> None:
        chain, path = self.sent.pop(data.draw(st.integers(0, len(self.sent) - 1)))
        self.index.store(self.holders[2], chain, now=1.0, path=path)
        self.counts[2] |= dict.fromkeys(chain, 1)

    @precondition(lambda self: len(self.prompts) < 60)
    @invariant()
    def equals_the_dictionary(self) -> None:
        for prompt in self.prompts:
            chain = chain_for(prompt)
            path = self.index.follow(chain)
            for which, holder in enumerate(self.holders):
                one = self.index.held(path, holder, now=5.0)
                late = self.index.held(path, holder, now=10.0)
                has = {hash_ for hash_, count in self.counts[which].items() if count}
                assert one.num_stored == late.num_expected == leading(chain, has)
                assert one.num_expected == leading(chain, has | self.expected[which])

    @invariant()
    def counts_what_is_there(self) -> None:
        statistics = self.index.statistics()
        assert statistics.num_bytes >= 8 * statistics.num_blocks
        assert (statistics.num_runs == 0) == (statistics.num_blocks == 0) == (statistics.num_bytes == 0)


def leading(chain: Chain, has: set[int]) -> int:
    return next((at for at, one in enumerate(chain) if one not in has), len(chain))


TestAgainstDictionary = AgainstDictionary.TestCase
TestAgainstDictionary.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


class Bounded(RuleBasedStateMachine):
    """With little room nothing is invented, and the bound holds."""

    def __init__(self) -> None:
        super().__init__()
        self.index = index_of(6_000)
        self.holder = self.index.add_holder("a")
        self.holder.has_events = True
        self.has: set[int] = set()
        self.sent: list[tuple[Chain, Path]] = []

    @rule(blocks=PROMPTS)
    def store(self, blocks: list[int]) -> None:
        if blocks:
            self.index.add_blocks(self.holder, stored(blocks), HASHER)
        self.has |= set(chain_for(blocks))

    @rule(blocks=PROMPTS)
    def answer(self, blocks: list[int]) -> None:
        self.index.store(self.holder, chain_for(blocks), now=1.0)
        self.has |= set(chain_for(blocks))

    @rule(blocks=PROMPTS)
    def send(self, blocks: list[int]) -> None:
        chain = chain_for(blocks)
        path = self.index.expect(self.holder, chain, until_s=10.0)
        assert path is not None
        self.sent.append((chain, path))
        self.has |= set(chain)

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def answer_what_was_sent(self, data: st.DataObject) -> None:
        chain, path = self.sent.pop(data.draw(st.integers(0, len(self.sent) - 1)))
        self.index.store(self.holder, chain, now=1.0, path=path)

    @rule(blocks=PROMPTS)
    def look(self, blocks: list[int]) -> None:
        chain = chain_for(blocks)
        assert held(self.index, self.holder, blocks).num_expected <= leading(chain, self.has)

    @invariant()
    def is_bounded(self) -> None:
        statistics = self.index.statistics()
        assert statistics.num_bytes <= 6_000
        assert len(self.holder.places) <= statistics.num_blocks


TestBounded = Bounded.TestCase
TestBounded.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_what_was_used_longest_ago_goes_first_and_what_continues_it_before_it() -> None:
    index = index_of(4_000)
    holder = index.add_holder("a")
    for prompt in range(100):
        index.store(holder, chain_for([1, 1, 1, prompt % 5, prompt]), now=float(prompt))

    assert held(index, holder, [1, 1, 1]).num_stored == 3
    assert held(index, holder, [1, 1, 1, 4, 99]).num_stored == 5
    assert held(index, holder, [1, 1, 1, 0, 0]).num_stored < 5
    assert index.statistics().num_evicted_runs > 0


def test_a_block_that_is_there_twice_is_there_until_both_have_gone() -> None:
    index = index_of()
    holder = index.add_holder("a")
    index.add_blocks(holder, stored([1, 2]), HASHER)
    index.add_blocks(holder, stored([1, 2]), HASHER)
    (first, _) = chain_for([1, 2])
    counts = []
    for _ in range(2):
        index.remove_block(holder, first * 2)
        counts.append(held(index, holder, [1, 2]).num_stored)

    assert counts == [2, 0]


def test_blocks_whose_parent_is_unknown_are_counted_and_left_out() -> None:
    index = index_of()
    holder = index.add_holder("a")
    index.add_blocks(holder, stored([1, 2, 3], first=1), HASHER)

    assert index.statistics().num_orphans == 2
    assert index.statistics().num_blocks == 0


def test_a_missing_prefix_means_that_what_was_used_before_it_has_gone_too() -> None:
    index = index_of()
    holder = index.add_holder("a")
    for prompt in range(3):
        index.store(holder, chain_for([prompt, 0]), now=float(prompt))
    index.forget_used_until(holder, 1.0)

    assert [held(index, holder, [prompt, 0]).num_stored for prompt in range(3)] == [0, 0, 2]


def test_what_is_stored_again_after_it_had_gone_counts_again() -> None:
    index = index_of()
    holder = index.add_holder("a")
    index.store(holder, chain_for([1, 2, 3]), now=1.0)
    index.forget_used_until(holder, 1.0)
    index.store(holder, chain_for([1, 2]), now=2.0)

    assert held(index, holder, [1, 2, 3]).num_stored == 2


@pytest.mark.parametrize("num_endpoints", [1, 64])
def test_memory_is_accounted_for_each_endpoint(num_endpoints: int) -> None:
    index = index_of()
    holders = [index.add_holder(str(number)) for number in range(num_endpoints)]
    for holder in holders:
        index.store(holder, chain_for(range(1000)), now=0.0)
    before = index.statistics().num_bytes
    index.remove_holder(holders[0])

    assert index.statistics().num_bytes < before
    assert (index.statistics().num_bytes == 0) == (num_endpoints == 1)
