"""Counts of the last minute, and quantiles from a histogram's buckets."""

from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.gateway.admin.recent import RecentCounts, quantile

BOUNDS = (1.0, 2.0, 5.0, 10.0, float("inf"))


def test_growth_is_told_since_the_oldest_look_that_is_remembered() -> None:
    recent = RecentCounts(2)

    assert [recent.look([float(count)]) for count in (3, 4, 10, 11)] == [[0.0], [1.0], [7.0], [7.0]]


def test_a_quantile_lies_evenly_within_its_bucket() -> None:
    assert quantile([0.0, 4.0, 0.0, 0.0, 0.0], BOUNDS, 0.5) == pytest.approx(1.5)
    assert quantile([1.0, 1.0, 0.0, 0.0, 0.0], BOUNDS, 0.99) == pytest.approx(1.98)


def test_nothing_counted_has_no_quantile() -> None:
    assert quantile([0.0] * 5, BOUNDS, 0.5) is None


def test_what_is_beyond_the_last_bound_is_told_as_that_bound() -> None:
    assert quantile([0.0, 0.0, 0.0, 0.0, 3.0], BOUNDS, 0.5) == 10.0


@given(st.lists(st.floats(0.01, 9.99), min_size=1), st.sampled_from([0.5, 0.9, 0.99]))
def test_a_quantile_falls_into_the_bucket_of_the_true_one(values: list[float], share: float) -> None:
    counts = [0.0] * len(BOUNDS)
    for value in values:
        counts[bisect_left(BOUNDS, value)] += 1
    rank = max(1, -int(-share * len(values) // 1))
    true = sorted(values)[rank - 1]

    found = quantile(counts, BOUNDS, share)
    assert found is not None
    assert bisect_left(BOUNDS, found) == bisect_left(BOUNDS, true)
