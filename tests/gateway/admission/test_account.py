import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.gateway.admission.account import Account
from headrace.gateway.admission.budget import Budget, Window, window_at
from headrace.gateway.admission.limits import (
    NO_LIMITS,
    Hold,
    KeyLimits,
    Levels,
    LimitName,
    hopeless,
    is_within,
    refusal,
)
from headrace.gateway.admission.state import levels_with
from headrace.gateway.admission.token_bucket import UNITS

WINDOWS = (window_at("day", 0.0), window_at("total", 0.0))
LIMITS = KeyLimits(
    requests_per_minute=30,
    tokens_per_minute=1000,
    concurrent_requests=3,
    budgets=(Budget(period="day", amount=500), Budget(period="total", amount=2000)),
)


@pytest.mark.parametrize(
    ("levels", "limit"),
    [
        (Levels(num_open=3, spent=(0, 0)), "concurrent_requests"),
        (Levels(requests_debt=30 * UNITS, spent=(0, 0)), "requests_per_minute"),
        (Levels(tokens_debt=901 * UNITS, spent=(0, 0)), "tokens_per_minute"),
        (Levels(held_tokens=901, spent=(0, 0)), "tokens_per_minute"),
        (Levels(spent=(451, 451)), "budget"),
        (Levels(held_cost=451, spent=(0, 0)), "budget"),
        (Levels(spent=(0, 1951)), "budget"),
    ],
)
def test_a_request_is_refused_by_the_limit_that_it_does_not_fit(levels: Levels, limit: LimitName) -> None:
    why = refusal(LIMITS, Hold(num_tokens=100, cost=50), levels)

    assert why is not None
    assert why.limit == limit


def test_what_just_fits_is_taken() -> None:
    levels = Levels(num_open=2, requests_debt=29 * UNITS, tokens_debt=400 * UNITS, held_tokens=500, spent=(450, 1950))

    assert refusal(LIMITS, Hold(num_tokens=100, cost=50), levels) is None


def test_what_is_alone_over_a_limit_is_hopeless() -> None:
    assert hopeless(LIMITS, Hold(num_tokens=1001)) is not None
    assert hopeless(LIMITS, Hold(num_tokens=1000, cost=501)) is not None
    assert hopeless(LIMITS, Hold(num_tokens=1000, cost=500)) is None
    assert hopeless(NO_LIMITS, Hold(num_tokens=10**12, cost=10**30)) is None


def test_a_new_window_begins_with_nothing_spent() -> None:
    account = Account()
    account.use(num_tokens=0, cost=500, limits=LIMITS, windows=WINDOWS, now_us=0)
    tomorrow = (window_at("day", 86400.0), WINDOWS[1])

    assert account.levels(LIMITS, windows=WINDOWS, now_us=0).spent == (500, 500)
    assert account.levels(LIMITS, windows=tomorrow, now_us=86400 * 10**6).spent == (0, 500)


def test_what_was_spent_outlives_a_change_of_the_budgets() -> None:
    account = Account()
    account.use(num_tokens=0, cost=500, limits=LIMITS, windows=WINDOWS, now_us=0)
    account.use(num_tokens=0, cost=7, limits=LIMITS, windows=WINDOWS[::-1], now_us=0)

    assert account.levels(LIMITS, windows=WINDOWS[:1], now_us=0).spent == (507,)
    account.use(num_tokens=0, cost=1, limits=NO_LIMITS, windows=(), now_us=0)
    assert account.levels(LIMITS, windows=WINDOWS, now_us=0).spent == (508, 508)


def test_windows_that_have_ended_are_not_remembered() -> None:
    account = Account()
    for day in range(50):
        now_us = day * 86400 * 10**6
        windows = (window_at("day", day * 86400.0),)
        account.note_spent((day,), windows=windows, now_us=now_us)
        account.use(num_tokens=0, cost=1, limits=LIMITS, windows=windows, now_us=now_us)

    assert account._spent_elsewhere == {}


KEPT_WINDOWS = (window_at("hour", 0.0), window_at("day", 0.0), window_at("month", 0.0), window_at("total", 0.0))


@given(st.lists(st.tuples(st.integers(0, 9), st.sets(st.sampled_from(KEPT_WINDOWS))), max_size=20))
def test_requests_of_old_and_new_limits_all_count_in_every_budget_that_was_there(
    uses: list[tuple[int, set[Window]]],
) -> None:
    account, expected = Account(), dict.fromkeys(KEPT_WINDOWS, 0)
    seen: set[Window] = set()
    for cost, windows in uses:
        seen |= windows
        account.use(num_tokens=0, cost=cost, limits=LIMITS, windows=tuple(windows), now_us=0)
        for window in seen:
            expected[window] += cost

    assert account.levels(LIMITS, windows=KEPT_WINDOWS, now_us=0).spent == tuple(expected.values())


rates = st.none() | st.integers(1, 50)
amounts = st.integers(0, 60)


@st.composite
def limits_and_levels(draw: st.DrawFn) -> tuple[KeyLimits, Levels]:
    """Small numbers, so that many are just within and many just over."""
    budgets = tuple(Budget(period="total", amount=amount) for amount in draw(st.lists(amounts, max_size=2)))
    limits = KeyLimits(
        requests_per_minute=draw(rates),
        tokens_per_minute=draw(rates),
        concurrent_requests=draw(rates),
        budgets=budgets,
    )
    levels = Levels(
        num_open=draw(amounts),
        held_tokens=draw(amounts),
        held_cost=draw(amounts),
        requests_debt=draw(amounts) * UNITS // 2,
        tokens_debt=draw(amounts) * UNITS // 2,
        spent=tuple(draw(amounts) for _ in budgets),
    )
    return limits, levels


@given(case=limits_and_levels(), num_tokens=amounts, cost=amounts)
def test_what_is_within_the_limits_is_what_nothing_refuses(
    case: tuple[KeyLimits, Levels], num_tokens: int, cost: int
) -> None:
    limits, levels = case
    hold = Hold(num_tokens=num_tokens, cost=cost)
    is_refused = (refusal(limits, hold, levels) or hopeless(limits, hold)) is not None

    assert is_within(limits, levels_with(levels, hold, limits)) is not is_refused


requests = st.tuples(
    st.integers(0, 5_000_000),  # microseconds since the last event
    st.integers(0, 400),  # tokens held
    st.integers(0, 200),  # cost held
    st.floats(0, 1),  # the part of it that is used
    st.booleans(),  # whether one that runs ends first
)


@given(steps=st.lists(requests, max_size=60))
def test_limits_hold_at_every_moment_and_nothing_stays_held(steps: list[tuple[int, int, int, float, bool]]) -> None:
    account = Account()
    running: list[tuple[Hold, int, int]] = []
    used: list[tuple[int, int]] = []
    spent = now_us = 0
    for step_us, tokens, cost, part, ends in steps:
        now_us += step_us
        if ends and running:
            hold, num_used, num_spent = running.pop(0)
            account.let_go(hold)
            account.use(num_tokens=num_used, cost=num_spent, limits=LIMITS, windows=WINDOWS, now_us=now_us)
            used.append((now_us, num_used))
            spent += num_spent
        hold = Hold(num_tokens=tokens, cost=cost)
        before = account.levels(LIMITS, windows=WINDOWS, now_us=now_us)
        taken = account.take(hold, LIMITS, windows=WINDOWS, now_us=now_us)
        assert (taken is None) == (refusal(LIMITS, hold, before) is not None)
        if taken is not None:
            assert taken == levels_with(before, hold, LIMITS)
            running.append((hold, int(tokens * part), int(cost * part)))
        levels = account.levels(LIMITS, windows=WINDOWS, now_us=now_us)
        assert levels.num_open == len(running) <= 3
        assert levels.spent == (spent, spent)
        assert spent + levels.held_cost <= 500
        assert levels.held_tokens == sum(one.num_tokens for one, _, _ in running)

    for first, (start_us, _) in enumerate(used):
        for last in range(first, len(used)):
            total = sum(amount for _, amount in used[first : last + 1])
            assert total * 60_000_000 <= 1000 * (60_000_000 + used[last][0] - start_us)
    for hold, _, _ in running:
        account.let_go(hold)
    assert account.levels(LIMITS, windows=WINDOWS, now_us=now_us).held_cost == 0
    assert account.is_idle
