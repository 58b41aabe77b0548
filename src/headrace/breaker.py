"""Circuit breaker of one peer that may fail. Pure: outcomes and `now` in, whether to send requests out.

Theory. Closed, every request passes; `num_failures_to_open` failures in a row open it. Open, nothing passes until its
pause is over. Then it is half open: one single request passes as a probe; its success closes the breaker, its failure
opens it for twice the pause (to a limit), and a probe that ends without a verdict (its client left) frees the place.

Rule 1: only a permit can report, and once. Rule 2: permits from before the last change of state have no say, so that
requests that fail late do not reopen a breaker that a probe has just closed, nor late successes close an open one.
"""

from enum import StrEnum

import msgspec


class BreakerState(StrEnum):
    """What the breaker lets pass."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Permit(msgspec.Struct, eq=False):
    """Leave to send one request; to be reported back exactly once."""

    generation: int
    is_probe: bool
    is_reported: bool = False


class Breaker:
    """See the module. Times are seconds of any one clock that does not go back."""

    def __init__(self, *, num_failures_to_open: int, pause_s: float, max_pause_s: float) -> None:
        self._num_failures_to_open = num_failures_to_open
        self._first_pause_s = pause_s
        self._max_pause_s = max_pause_s
        self._pause_s = pause_s
        self._num_failures = 0
        self._generation = 0
        self._opened_s: float | None = None
        self._has_probe = False
        self.num_opened = 0

    def state(self, now: float) -> BreakerState:
        """The state at `now`."""
        if self._opened_s is None:
            return BreakerState.CLOSED
        is_over = now >= self._opened_s + self._pause_s
        return BreakerState.HALF_OPEN if is_over else BreakerState.OPEN

    def allows(self, now: float) -> bool:
        """Whether `acquire` would give a permit."""
        return self._opened_s is None or (not self._has_probe and self.state(now) is BreakerState.HALF_OPEN)

    def acquire(self, now: float) -> Permit:
        """Leave to send a request. Ask `allows` first."""
        if self._opened_s is None:
            return Permit(self._generation, False)
        assert self.allows(now), self
        self._has_probe = True
        return Permit(self._generation, True)

    def succeed(self, permit: Permit) -> None:
        """The endpoint answered."""
        if not self._take(permit):
            return
        self._num_failures = 0
        if permit.is_probe:
            self._opened_s = None
            self._pause_s = self._first_pause_s
            self._generation += 1

    def fail(self, permit: Permit, now: float) -> None:
        """The endpoint did not answer, or not what it should."""
        if not self._take(permit):
            return
        self._num_failures += 1
        if permit.is_probe:
            self._pause_s = min(self._pause_s * 2, self._max_pause_s)
            self._open(now)
        elif self._num_failures >= self._num_failures_to_open:
            self._open(now)

    def release(self, permit: Permit) -> None:
        """The request ended without a verdict on the endpoint. Does nothing when the permit was reported before."""
        self._take(permit)

    def _take(self, permit: Permit) -> bool:
        """Whether `permit` still has a say; it has none from now on."""
        if permit.is_reported or permit.generation != self._generation:
            return False
        permit.is_reported = True
        if permit.is_probe:
            self._has_probe = False
        return True

    def _open(self, now: float) -> None:
        self._opened_s = now
        self._num_failures = 0
        self._has_probe = False
        self._generation += 1
        self.num_opened += 1

    def __repr__(self) -> str:
        state = "closed" if self._opened_s is None else f"opened at {self._opened_s:.3f} for {self._pause_s:g} s"
        return f"Breaker({state}, num_failures={self._num_failures}, has_probe={self._has_probe})"
