"""Equal work that is asked for at the same time is done once. Knows nothing of the work."""

import asyncio
import copy
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)
ResultT = TypeVar("ResultT")


class SingleFlight(Generic[KeyT, ResultT]):
    """Work in flight, by key. Belongs to one event loop; `len` counts the flights."""

    def __init__(self) -> None:
        self._flights: dict[KeyT, _Flight[ResultT]] = {}

    def is_in_flight(self, key: KeyT) -> bool:
        return key in self._flights

    async def join(self, key: KeyT, start: Callable[[], asyncio.Future[ResultT]]) -> ResultT:
        """The result of the work in flight under `key`, or of `start()` when there is none.

        Any caller may be cancelled and the work goes on for the others; when the last one leaves, the work is
        cancelled. An error reaches every caller as its own copy, so that their tracebacks stay apart.
        """
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = _Flight(start())
            flight.work.add_done_callback(lambda _: self._land(key, flight))
        waiter = asyncio.get_running_loop().create_future()
        flight.waiters.add(waiter)
        try:
            await waiter
        finally:
            flight.waiters.discard(waiter)
            if not flight.waiters and not flight.work.done():
                self._forget(key, flight)
                flight.work.cancel()
        return _result_for_one(flight.work)

    def _land(self, key: KeyT, flight: "_Flight[ResultT]") -> None:
        self._forget(key, flight)
        if not flight.work.cancelled():
            flight.work.exception()  # retrieved: each waiter raises its copy
        for waiter in flight.waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _forget(self, key: KeyT, flight: "_Flight[ResultT]") -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]

    def __len__(self) -> int:
        return len(self._flights)

    def __repr__(self) -> str:
        return f"SingleFlight(num_flights={len(self._flights)})"


class _Flight(Generic[ResultT]):
    __slots__ = ("waiters", "work")

    def __init__(self, work: asyncio.Future[ResultT]) -> None:
        self.work = work
        self.waiters: set[asyncio.Future[None]] = set()


def _result_for_one(work: asyncio.Future[ResultT]) -> ResultT:
    if work.cancelled() or (error := work.exception()) is None:
        return work.result()
    own = copy.copy(error)
    own.__cause__ = error.__cause__ or error
    raise own
