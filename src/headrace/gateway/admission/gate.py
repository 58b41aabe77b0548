"""Where requests wait for a place at the endpoints of their model. Who goes next is the queue's decision."""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import msgspec

from headrace.errors import OverloadedError
from headrace.gateway.admission.priority import PriorityClass
from headrace.gateway.admission.queue import FairQueue

_NUM_RECENT = 64
_MAX_RETRY_AFTER_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GateStatistics:
    """What waits and what runs now, and what became of others."""

    num_waiting: dict[str, int]
    max_waiting: int
    """As many of a class may wait for a model."""
    num_running: int
    num_refused: int
    num_timed_out: int


class QueueTicket(msgspec.Struct, frozen=True, kw_only=True):
    """What the queue needs to know of a request."""

    model: str
    key: str
    priority: PriorityClass
    weight: int = 1
    cost: int = 1
    """Its tokens."""


class RequestGate:
    """Lets as many requests of a model through as `places(model)` says; None: all.

    A model that nobody can serve now has no places; requests for it go on all the same, to be told so.
    """

    def __init__(
        self, *, places: Callable[[str], int | None], max_waiting: int, ageing_s: float, timeout_s: float
    ) -> None:
        self._places = places
        self._max_waiting = max_waiting
        self._ageing_s = ageing_s
        self._timeout_s = timeout_s
        self._lines: dict[str, _Line] = {}
        self._num_refused = 0
        self._num_timed_out = 0

    def is_open(self, model: str) -> bool:
        """Whether a request that comes now need not wait."""
        return self._places(model) is None or self._line(model).is_open()

    def enter_now(self, model: str) -> "Place":
        """A place, in the same moment in which `is_open` said that there is one."""
        line = self._lines.get(model)
        return _OPEN_TO_ALL if line is None else line.enter()

    async def enter(self, ticket: QueueTicket) -> "Place":
        """Wait for a place. Raises OverloadedError when too many of the class wait, or the wait takes too long;
        cancelled, or raising, it leaves the queue and holds nothing."""
        if self.is_open(ticket.model):
            return self.enter_now(ticket.model)
        return await self._wait(self._line(ticket.model), ticket)

    async def _wait(self, line: "_Line", ticket: QueueTicket) -> "Place":
        handed_over: asyncio.Future[Place] = asyncio.get_running_loop().create_future()
        since_s = time.monotonic()
        waiting = line.queue.push(
            handed_over,
            priority=ticket.priority,
            key=ticket.key,
            weight=ticket.weight,
            cost=ticket.cost,
            now=since_s,
        )
        if waiting is None:
            self._num_refused += 1
            raise self._queue_full(line, ticket)
        try:
            async with asyncio.timeout(self._timeout_s):
                place = await handed_over
        except BaseException as error:
            line.queue.remove(waiting)
            if handed_over.done() and not handed_over.cancelled():
                handed_over.result().give_back()  # it came in the moment of leaving
            if isinstance(error, TimeoutError):
                self._num_timed_out += 1
                raise self._took_too_long(line, ticket) from error
            raise
        place.waited_s = time.monotonic() - since_s
        return place

    def wake(self) -> None:
        """Look again: places may have come with an endpoint, not with a request that ended."""
        for line in tuple(self._lines.values()):
            line.hand_over()

    def statistics(self) -> GateStatistics:
        waiting: Counter[str] = Counter()
        for line in self._lines.values():
            waiting.update(line.queue.num_waiting())
        return GateStatistics(
            num_waiting=dict(waiting),
            max_waiting=self._max_waiting,
            num_running=sum(line.num_running for line in self._lines.values()),
            num_refused=self._num_refused,
            num_timed_out=self._num_timed_out,
        )

    def _line(self, model: str) -> "_Line":
        line = self._lines.get(model)
        if line is None:  # as many as there are models, which `identify` has checked
            queue: FairQueue[asyncio.Future[Place]] = FairQueue(max_waiting=self._max_waiting, ageing_s=self._ageing_s)
            line = self._lines[model] = _Line(queue, places=lambda: self._places(model))
        return line

    def _queue_full(self, line: "_Line", ticket: QueueTicket) -> OverloadedError:
        return OverloadedError(
            f"{self._max_waiting} requests of class {ticket.priority} wait for model {ticket.model!r}, which is the "
            "limit; try again later.",
            code="queue_full",
            retry_after_s=line.estimate_wait_s(),
        )

    def _took_too_long(self, line: "_Line", ticket: QueueTicket) -> OverloadedError:
        return OverloadedError(
            f"No endpoint of model {ticket.model!r} had a place within {self._timeout_s:g} s; try again later.",
            code="queue_timeout",
            retry_after_s=line.estimate_wait_s(),
        )

    def __repr__(self) -> str:
        statistics = self.statistics()
        return f"RequestGate(num_running={statistics.num_running}, num_waiting={sum(statistics.num_waiting.values())})"


class Place:
    """One request's place at the endpoints of its model."""

    __slots__ = ("_line", "waited_s")

    def __init__(self, line: "_Line | None") -> None:
        self._line = line
        self.waited_s = 0.0

    def give_back(self) -> None:
        """Let the next request have it. Safe to call twice."""
        if self._line is not None:
            line, self._line = self._line, None
            line.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.give_back()


_OPEN_TO_ALL = Place(None)
"""The place of every request for a model that takes any number: nothing is counted, so nothing ever changes in it."""


class _Line:
    """The requests of one model."""

    def __init__(self, queue: FairQueue[asyncio.Future[Place]], *, places: Callable[[], int | None]) -> None:
        self.queue = queue
        self.num_running = 0
        self._places = places
        self._ends_s: deque[float] = deque(maxlen=_NUM_RECENT)

    def is_open(self) -> bool:
        """Whether a request that comes now need not wait."""
        num_places = self._places()
        return not num_places or (not self.queue and self.num_running < num_places)

    def enter(self) -> Place:
        self.num_running += 1
        return Place(self)

    def leave(self) -> None:
        self.num_running -= 1
        self._ends_s.append(time.monotonic())
        self.hand_over()

    def hand_over(self) -> None:
        """Give the free places to those who wait."""
        now_s = time.monotonic()
        while self.queue and self.num_running < (self._places() or 0):
            waiter = self.queue.pop(now_s)
            if waiter is not None and not waiter.done():
                waiter.set_result(self.enter())

    def estimate_wait_s(self) -> float:
        """How long the queue takes, at the pace of the latest requests."""
        if len(self._ends_s) < 2:
            return 1.0
        pace_s = (time.monotonic() - self._ends_s[0]) / len(self._ends_s)
        return min(_MAX_RETRY_AFTER_S, max(1.0, pace_s * len(self.queue)))
