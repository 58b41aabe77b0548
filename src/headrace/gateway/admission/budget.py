"""What a key may spend in a stretch of time, and where that stretch begins and ends (UTC). Pure."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Literal

import msgspec

_MAX_KEPT = 4096

Period = Literal["hour", "day", "month", "total"]


class Budget(msgspec.Struct, frozen=True, kw_only=True):
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
        self._kept: dict[tuple[Budget, ...], tuple[Window, ...]] = {}
        self._until_s = inf
        """When the first of them ends."""

    def of(self, budgets: tuple[Budget, ...], now_s: float) -> tuple[Window, ...]:
        """The window of each of `budgets` at `now_s`: the same tuple for the same budgets until a window ends."""
        if now_s < self._until_s and (windows := self._kept.get(budgets)) is not None:
            return windows
        if now_s >= self._until_s or len(self._kept) >= _MAX_KEPT:
            self._kept.clear()
            self._until_s = inf
        windows = self._kept[budgets] = tuple([window_at(budget.period, now_s) for budget in budgets])
        self._until_s = min([self._until_s, *(window.end_s for window in windows if window.end_s is not None)])
        return windows

    def __repr__(self) -> str:
        return f"PresentWindows(num_kept={len(self._kept)}, until_s={self._until_s})"
