from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.gateway.admission.budget import Budget, Period, PresentWindows, window_at


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("period", "name", "end"),
    [
        ("hour", "hour-2026-12-31T23", "2027-01-01T00:00:00"),
        ("day", "day-2026-12-31", "2027-01-01T00:00:00"),
        ("month", "month-2026-12", "2027-01-01T00:00:00"),
    ],
)
def test_windows_are_those_of_the_calendar_in_utc(period: Period, name: str, end: str) -> None:
    window = window_at(period, at("2026-12-31T23:59:59"))

    assert (window.name, window.end_s) == (name, at(end))


def test_the_total_never_ends() -> None:
    assert window_at("total", 0.0).end_s is None


@given(period=st.sampled_from(["hour", "day", "month"]), now_s=st.integers(0, 4_000_000_000))
def test_the_end_of_a_window_is_the_start_of_another(period: Period, now_s: int) -> None:
    window = window_at(period, now_s)

    assert window.end_s is not None
    assert window.end_s > now_s
    assert window_at(period, window.end_s - 1) == window
    assert window_at(period, window.end_s).name != window.name


@given(steps_s=st.lists(st.floats(0, 4000), max_size=50))
def test_the_present_windows_are_those_of_the_moment(steps_s: list[float]) -> None:
    budgets = tuple(Budget(period=period, amount=1) for period in ("hour", "day", "month", "total"))
    present = PresentWindows()
    now_s = at("2026-12-31T20:00:00")
    for step_s in steps_s:
        now_s += step_s
        assert present.of(budgets, now_s) == tuple(window_at(budget.period, now_s) for budget in budgets)


def test_the_same_budgets_have_the_same_windows_until_one_ends() -> None:
    hourly = (Budget(period="hour", amount=1),)
    present = PresentWindows()
    windows = present.of(hourly, at("2026-12-31T20:00:00"))

    assert present.of((Budget(period="total", amount=1),), at("2026-12-31T20:30:00"))[0].name == "total"
    assert present.of(hourly, at("2026-12-31T20:59:59")) is windows
    assert present.of(hourly, at("2026-12-31T21:00:00")) != windows


def test_windows_are_kept_for_some_budgets_only() -> None:
    present = PresentWindows()
    for amount in range(5000):
        present.of((Budget(period="total", amount=amount),), 0.0)

    assert 0 < len(present._kept) <= 4096
