from collections import OrderedDict

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace.tokenization.cache import SegmentedCache

_KEYS = st.integers(0, 15)


class CacheModel(RuleBasedStateMachine):
    """The cache against a plain dictionary of everything that was ever put."""

    def __init__(self) -> None:
        super().__init__()
        self.cache: SegmentedCache[int, str] = SegmentedCache(max_bytes=100, max_entries=6)
        self.latest: dict[int, tuple[str, int]] = {}
        self.num_lookups = 0

    @rule(key=_KEYS, value=st.text(max_size=2), num_bytes=st.integers(0, 120))
    def put(self, key: int, value: str, num_bytes: int) -> None:
        self.cache.put(key, value, num_bytes=num_bytes)
        self.latest[key] = (value, num_bytes)
        assert (key in self.cache) == (num_bytes <= 100), "the newest entry stays if it can fit at all"

    @rule(key=_KEYS)
    def get(self, key: int) -> None:
        was_here = key in self.cache
        value = self.cache.get(key)
        self.num_lookups += 1
        assert (value is not None) == was_here
        if was_here:
            assert value == self.latest[key][0], "a value is never stale"
            assert key in self.cache

    @invariant()
    def the_bounds_hold_and_the_books_balance(self) -> None:
        seen = self.cache.statistics()
        present = [key for key in range(16) if key in self.cache]
        assert seen.num_entries == len(present) <= 6
        assert seen.num_bytes == sum(self.latest[key][1] for key in present) <= 100
        assert seen.num_hits + seen.num_misses == self.num_lookups


CacheModel.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestCacheModel = CacheModel.TestCase


def test_a_flood_of_new_texts_leaves_the_hot_ones() -> None:
    cache: SegmentedCache[str, int] = SegmentedCache(max_bytes=1000, max_entries=10)
    for number in range(5):
        cache.put(f"hot-{number}", number, num_bytes=10)
        cache.get(f"hot-{number}")
    for number in range(1000):
        cache.put(f"scan-{number}", number, num_bytes=10)
    assert [cache.get(f"hot-{number}") for number in range(5)] == [0, 1, 2, 3, 4]


def test_hot_texts_that_nobody_asks_for_any_more_make_room_for_new_hot_ones() -> None:
    cache: SegmentedCache[int, int] = SegmentedCache(max_bytes=1000, max_entries=10)
    for number in range(30):
        cache.put(number, number, num_bytes=10)
        cache.get(number)
    assert 0 not in cache
    assert all(number in cache for number in range(22, 30))


def test_new_texts_have_room_to_prove_themselves_among_hot_ones() -> None:
    cache: SegmentedCache[str, int] = SegmentedCache(max_bytes=1000, max_entries=10)
    for number in range(10):
        cache.put(f"hot-{number}", number, num_bytes=10)
        cache.get(f"hot-{number}")
    cache.put("new", 1, num_bytes=10)
    cache.put("newer", 2, num_bytes=10)
    assert cache.get("new") == 1


def test_room_that_an_evicted_hot_text_gives_back_protects_others() -> None:
    cache: SegmentedCache[str, int] = SegmentedCache(max_bytes=1000, max_entries=100)
    for key, num_bytes in (("large", 700), ("middle", 400), ("small", 100)):
        cache.put(key, num_bytes, num_bytes=num_bytes)
        cache.get(key)
    for number in range(100):
        cache.put(f"scan-{number}", number, num_bytes=100)
    assert ["large" in cache, "middle" in cache, "small" in cache] == [False, True, True]


def test_among_texts_seen_once_the_oldest_goes_first() -> None:
    cache: SegmentedCache[int, int] = SegmentedCache(max_bytes=1000, max_entries=3)
    model: OrderedDict[int, int] = OrderedDict()
    for number in (5, 3, 8, 1, 9):
        cache.put(number, number, num_bytes=1)
        model[number] = number
    assert [number in cache for number in model] == [False, False, True, True, True]


@pytest.mark.parametrize(("max_bytes", "max_entries"), [(0, 10), (10, 0)])
def test_a_bound_of_zero_keeps_nothing(max_bytes: int, max_entries: int) -> None:
    cache: SegmentedCache[str, int] = SegmentedCache(max_bytes=max_bytes, max_entries=max_entries)
    cache.put("text", 1, num_bytes=5)
    assert cache.get("text") is None
    assert cache.statistics().num_bytes == 0
