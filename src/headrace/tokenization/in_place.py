"""Encoding in the event loop: what fits into a round of the loop is encoded in it, what does not waits for a later one.

Waiting in place costs a caller far less than going to a thread and back, and the loop is held no longer in any round.
Belongs to one event loop. Whoever encodes says what it took.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from headrace.tokenization.loop_budget import LoopBudget

_MAX_ROUNDS = 32
"""What would wait for more rounds than these goes to a thread."""


class InPlace:
    """Call `fits`, and where it does not `await turn`; when either is true, encode at once and tell `spend`."""

    def __init__(self, *, budget_s: float, max_chars: int, on_round_end: Callable[[], None] | None = None) -> None:
        """Texts of more than `max_chars` never fit. `on_round_end` is called after each round that had any."""
        self._on_round_end = on_round_end
        self._budget = LoopBudget(budget_s=budget_s)
        self._max_chars = max_chars
        self._max_waiting_s = _MAX_ROUNDS * budget_s
        self._waiting: deque[tuple[float, asyncio.Future[None]]] = deque()
        """What each is estimated to take, and how it is told that it may."""
        self._waiting_s = 0.0
        self._is_round_open = False

    def fits(self, num_chars: int) -> bool:
        """Whether so much may be encoded now."""
        return num_chars <= self._max_chars and self._budget.allows(num_chars)

    async def turn(self, num_chars: int) -> bool:
        """Return True when so much may be encoded, False at once when that would never be or take too many rounds."""
        estimate_s = self._budget.estimate_s(num_chars)
        if num_chars > self._max_chars or estimate_s > self._budget.budget_s:
            return False
        if self._waiting_s + estimate_s > self._max_waiting_s:
            return False
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((estimate_s, future))
        self._waiting_s += estimate_s
        self._open_round()
        await future
        self._budget.release(estimate_s)
        return True

    def spend(self, num_chars: int, *, took_s: float) -> None:
        """Note that so much was encoded. The round ends when the loop comes round."""
        self._budget.spend(num_chars, took_s=took_s)
        if not self._is_round_open:
            self._open_round()

    def _open_round(self) -> None:
        if not self._is_round_open:
            self._is_round_open = True
            asyncio.get_running_loop().call_soon(self._end_round)

    def _end_round(self) -> None:
        self._is_round_open = False
        self._budget.renew()
        if self._on_round_end is not None:
            self._on_round_end()
        while self._waiting and self._budget.reserve(self._waiting[0][0]):
            estimate_s, future = self._waiting.popleft()
            self._waiting_s -= estimate_s
            if not future.done():
                future.set_result(None)
        if self._budget.is_reserved:
            self._open_round()  # ends after all who were let go have run

    def __len__(self) -> int:
        """Texts that wait."""
        return len(self._waiting)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"InPlace(num_waiting={len(self._waiting)}, {self._budget!r})"
