"""Spreads work that holds the event loop over its rounds, so that others get theirs in between."""

import asyncio
from collections import deque


class Turns:
    """Lets `per_round` callers go on in each round of the loop, in the order of their coming. For one loop's thread."""

    def __init__(self, *, per_round: int) -> None:
        self._per_round = per_round
        self._num_left = per_round
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._next_round: asyncio.Handle | None = None

    async def take(self) -> None:
        """Returns when it is the caller's turn. Cancelled, the caller's place is given to the next."""
        if self._num_left and not self._waiting:
            self._num_left -= 1
            self._await_round()
            return
        place = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        self._await_round()
        await place

    def _await_round(self) -> None:
        if self._next_round is None:
            self._next_round = asyncio.get_running_loop().call_soon(self._begin_round)

    def _begin_round(self) -> None:
        self._next_round = None
        self._num_left = self._per_round
        while self._waiting and self._num_left:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                self._num_left -= 1
        if self._num_left < self._per_round:
            self._await_round()

    def __repr__(self) -> str:
        return f"Turns({self._per_round} per round, {len(self._waiting)} waiting)"
