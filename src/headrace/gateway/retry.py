"""Whether a request that an endpoint failed may go to another one, and how long it waits before. Pure.

Theory. Retries come when a fleet has the least room for them: if each of ten thousand requests may be sent three times,
a fleet that stumbles gets three times its load. So all requests of a gateway share one budget. Each request earns a
share of one retry, a floor comes by itself, so that few requests can be retried too, and what is earned fades within
`WINDOW_S`. While the budget is empty, an endpoint's failure is its client's answer.

Requests that fail together, because their endpoint died, wait for random times, so as not to arrive together.
"""

import math
from dataclasses import dataclass

WINDOW_S = 10.0
"""What is earned now is worth 1/e of it so much later."""
RETRIED_STATUSES = frozenset({500, 502, 503, 504})
"""What says that an endpoint, rather than the request, is at fault."""
_ABOUT_THE_REQUEST = frozenset({501, 505})


def is_fault_status(status: int) -> bool:
    """Whether an endpoint that answers so is itself at fault."""
    return status >= 500 and status not in _ABOUT_THE_REQUEST


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryStatistics:
    """The budget now, and what it was asked for."""

    num_allowed: int
    num_refused: int
    num_left: float


class Retries:
    """The retries of all requests together. `share` is what one request earns; `floor` is what there is without any
    request. Times are seconds of any one clock."""

    def __init__(self, *, share: float, floor: float, first_delay_s: float) -> None:
        self._share = share
        self._floor = floor
        self._first_delay_s = first_delay_s
        self._earned = 0.0
        self._spent = 0.0
        self._updated_s = -math.inf
        self._num_allowed = 0
        self._num_refused = 0

    def note_request(self, now: float) -> None:
        """A request is sent for the first time."""
        self._fade(now)
        self._earned += self._share

    def take(self, now: float) -> bool:
        """Whether a request may be sent once more; the retry is then spent."""
        self._fade(now)
        if self.num_left < 1:
            self._num_refused += 1
            return False
        self._spent += 1
        self._num_allowed += 1
        return True

    def delay_s(self, num_failures: int, *, draw: float) -> float:
        """How long a request that has failed so often waits: a part, `draw` of 0 to 1, of a time that doubles."""
        return draw * self._first_delay_s * 2.0 ** (num_failures - 1)

    @property
    def num_left(self) -> float:
        """Retries that could be taken, as of the last call."""
        return self._floor + self._earned - self._spent

    def statistics(self) -> RetryStatistics:
        return RetryStatistics(num_allowed=self._num_allowed, num_refused=self._num_refused, num_left=self.num_left)

    def _fade(self, now: float) -> None:
        """Earnings fade, and so does what was spent: a floor that is spent comes back."""
        kept = math.exp(-max(0.0, now - self._updated_s) / WINDOW_S)
        self._earned *= kept
        self._spent *= kept
        self._updated_s = now

    def __repr__(self) -> str:
        return f"Retries(num_left={self.num_left:.1f}, num_refused={self._num_refused})"
