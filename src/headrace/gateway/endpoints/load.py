"""How many requests of this gateway an endpoint has in hand. Reserved when it is chosen, not when reached, so that
a burst of choices in one moment does not all fall on the same endpoint."""

import asyncio
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadStatistics:
    """Requests of one endpoint, now and ever."""

    num_in_flight: int
    num_waiting_tokens: int
    num_done: int
    num_failed: int
    num_cancelled: int


class EndpointLoad:
    """The counts of one endpoint."""

    def __init__(self) -> None:
        self.num_in_flight = 0
        self.num_waiting_tokens = 0
        """New prompt tokens of the requests that have no answer yet."""
        self._num_done = 0
        self._num_failed = 0
        self._num_cancelled = 0
        self._idle: asyncio.Event | None = None

    async def wait_idle(self) -> None:
        """Wait until no request is in flight."""
        while self.num_in_flight:
            if self._idle is None:
                self._idle = asyncio.Event()
            self._idle.clear()
            await self._idle.wait()

    def count_begin(self, num_new_tokens: int) -> None:
        """One request was given this endpoint. The prompt tokens that must be computed for it count until it is
        answered: whoever counts takes them off `num_waiting_tokens` then, or at its end."""
        self.num_in_flight += 1
        self.num_waiting_tokens += num_new_tokens

    def count_end(self, num_waiting_tokens: int, *, is_done: bool | None) -> None:
        """One request ended: well, badly, or (None) because its client left; with so many tokens still counted."""
        self.num_in_flight -= 1
        self.num_waiting_tokens -= num_waiting_tokens
        if self._idle is not None and not self.num_in_flight:
            self._idle.set()
        if is_done is None:
            self._num_cancelled += 1
        elif is_done:
            self._num_done += 1
        else:
            self._num_failed += 1

    def statistics(self) -> LoadStatistics:
        return LoadStatistics(
            num_in_flight=self.num_in_flight,
            num_waiting_tokens=self.num_waiting_tokens,
            num_done=self._num_done,
            num_failed=self._num_failed,
            num_cancelled=self._num_cancelled,
        )

    def __repr__(self) -> str:
        return f"EndpointLoad(num_in_flight={self.num_in_flight}, num_done={self._num_done})"
