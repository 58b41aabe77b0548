"""What a key may spend in a stretch of time, and where that stretch begins and ends (UTC). Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

Period = Literal["hour", "day", "month", "total"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """`amount` picodollars in each `period`; `total` never begins anew."""

    period: Period
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One hour, day or month of a budget. What is spent in it is counted under `name`."""

    name: str
    end_s: float | None
    """Seconds since the epoch; None for the window that never ends."""


def window_at(period: Period, now_s: float) -> Window:
    """The window of `period` that holds `now_s`, seconds since the epoch."""
    if period == "total":
        return Window(name="total", end_s=None)
    now = datetime.fromtimestamp(now_s, UTC)
    if period == "hour":
        start = now.replace(minute=0, second=0, microsecond=0)
        return Window(name=f"hour-{start:%Y-%m-%dT%H}", end_s=(start + timedelta(hours=1)).timestamp())
    start = now.replace(hour=0, minute=0, second=0, microsecond=0)
    if period == "day":
        return Window(name=f"day-{start:%Y-%m-%d}", end_s=(start + timedelta(days=1)).timestamp())
    start = start.replace(day=1)
    end = (start + timedelta(days=32)).replace(day=1)
    return Window(name=f"month-{start:%Y-%m}", end_s=end.timestamp())


class PresentWindows:
    """The windows that hold the present, worked out anew only when one has ended. For a clock that does not go back."""

    def __init__(self) -> None:
        self._windows: dict[Period, Window] = {}

    def of(self, budgets: Sequence[Budget], now_s: float) -> tuple[Window, ...]:
        """The window of each of `budgets` at `now_s`."""
        return tuple([self._window(budget.period, now_s) for budget in budgets]) if budgets else ()

    def _window(self, period: Period, now_s: float) -> Window:
        window = self._windows.get(period)
        if window is None or (window.end_s is not None and now_s >= window.end_s):
            window = self._windows[period] = window_at(period, now_s)
        return window

    def __repr__(self) -> str:
        return f"PresentWindows({', '.join(window.name for window in self._windows.values())})"
