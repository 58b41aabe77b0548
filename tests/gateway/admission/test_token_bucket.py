from hypothesis import given
from hypothesis import strategies as st

from headrace.gateway.admission.token_bucket import UNITS, TokenBucket, fits, num_left, reset_s, wait_s

MINUTE_US = 60_000_000


@given(
    per_minute=st.integers(1, 1000),
    steps=st.lists(st.tuples(st.integers(-2_000_000, 30_000_000), st.integers(0, 300)), max_size=60),
)
def test_never_more_is_taken_than_rate_times_time_and_one_burst(per_minute: int, steps: list[tuple[int, int]]) -> None:
    bucket = TokenBucket()
    now_us = 10**15
    taken: list[tuple[int, int]] = []
    for step_us, amount in steps:
        now_us += step_us
        if fits(bucket.debt_at(now_us, per_minute=per_minute), amount, per_minute=per_minute):
            bucket.take(amount, now_us=now_us, per_minute=per_minute)
            taken.append((bucket.updated_us, amount))

    for first, (start_us, _) in enumerate(taken):
        total = 0
        for end_us, amount in taken[first:]:
            total += amount
            assert total * MINUTE_US <= per_minute * (MINUTE_US + end_us - start_us)


@given(per_minute=st.integers(1, 10**8), debt=st.integers(0, 10**8), amount=st.integers(1, 10**8))
def test_what_waits_as_told_fits_if_it_can_fit_at_all(per_minute: int, debt: int, amount: int) -> None:
    owed = min(debt, per_minute) * UNITS
    wait_us = -(-wait_s(owed, amount, per_minute=per_minute) * 10**6 // 1)
    later = TokenBucket(debt=owed, updated_us=0).debt_at(int(wait_us) + 1, per_minute=per_minute)

    assert fits(later, amount, per_minute=per_minute) == (amount <= per_minute)


def test_a_whole_burst_fits_at_once_also_where_a_minute_does_not_divide() -> None:
    bucket = TokenBucket()
    for _ in range(7):
        assert fits(bucket.debt_at(0, per_minute=7), 1, per_minute=7)
        bucket.take(1, now_us=0, per_minute=7)

    assert not fits(bucket.debt_at(0, per_minute=7), 1, per_minute=7)


def test_what_is_left_and_when_all_is_back_are_told() -> None:
    bucket = TokenBucket()
    bucket.take(30, now_us=0, per_minute=60)

    assert num_left(bucket.debt_at(0, per_minute=60), per_minute=60) == 30
    assert num_left(bucket.debt_at(500_000, per_minute=60), per_minute=60) == 30  # half a token is none
    assert num_left(bucket.debt_at(1_000_000, per_minute=60), per_minute=60) == 31
    assert reset_s(bucket.debt_at(0, per_minute=60), per_minute=60) == 30.0


def test_use_over_the_burst_is_owed() -> None:
    bucket = TokenBucket()
    bucket.take(100, now_us=0, per_minute=60)

    assert not fits(bucket.debt_at(40_000_000, per_minute=60), 1, per_minute=60)
    assert fits(bucket.debt_at(41_000_000, per_minute=60), 1, per_minute=60)
