"""A rate per minute with a burst of one minute's worth. Pure, and exact: integers only.

Theory. The bucket is kept as a debt that drains: taking adds to it, time takes away `per_minute` a minute, and it may
not grow over one minute's worth. The debt counts units, of which one token (or request) has 60 million, the
microseconds of a minute: in one microsecond exactly `per_minute` units drain, and nothing is ever rounded. Below 2**53
units the same arithmetic is exact in Lua's numbers, where `shared_scripts` repeats it.

Rule: in any stretch of time no more is taken than that time's rate and one burst, whatever `now` does; a clock that
goes back drains nothing until it has caught up.
"""

from dataclasses import dataclass

UNITS = 60_000_000
"""Units of debt of one token or request."""

MAX_PER_MINUTE = 100_000_000
"""The highest rate that the arithmetic holds exactly."""


@dataclass(slots=True)
class TokenBucket:
    """The debt at one moment; the rate is the caller's, since a key's limits can change."""

    debt: int = 0
    updated_us: int = 0

    def debt_at(self, now_us: int, *, per_minute: int) -> int:
        """What is still owed at `now_us`."""
        debt = self.debt
        if now_us > self.updated_us:
            debt -= (now_us - self.updated_us) * per_minute
            if debt < 0:
                debt = 0
        return debt

    def take(self, amount: int, *, now_us: int, per_minute: int) -> None:
        """Add `amount`, whether it fits or not: what has been used is owed. Ask `fits` before."""
        self.debt = self.debt_at(now_us, per_minute=per_minute) + amount * UNITS
        if now_us > self.updated_us:
            self.updated_us = now_us

    def owe(self, debt: int, *, now_us: int) -> None:
        """`debt` is what is owed at `now_us`: what `debt_at` said for that moment, and whatever was taken."""
        self.debt = debt
        if now_us > self.updated_us:
            self.updated_us = now_us


def fits(debt: int, amount: int, *, per_minute: int) -> bool:
    """Whether `amount` may be taken on top of `debt`."""
    return debt + amount * UNITS <= per_minute * UNITS


def wait_s(debt: int, amount: int, *, per_minute: int) -> float:
    """How long until `amount` fits, if nothing else is taken; no longer than until the whole debt has drained."""
    return min(debt, max(0, debt + (amount - per_minute) * UNITS)) / per_minute / 1e6


def num_left(debt: int, *, per_minute: int) -> int:
    """How much may be taken now."""
    return max(0, per_minute - -(-debt // UNITS))


def reset_s(debt: int, *, per_minute: int) -> float:
    """How long until the bucket is as if nothing had ever been taken."""
    return debt / per_minute / 1e6
