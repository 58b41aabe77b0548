"""The requests that wait for a place at an endpoint: by class, with ageing, and fairly between keys. Pure.

Theory. Between classes, the one whose oldest request has the lowest rank goes first, and each `ageing_s` of waiting
lowers a rank by one: of two classes, the one whose oldest came two ageings before the other's goes first. Within a
class, keys share by start-time fair queueing: each request gets a start and a finish on a virtual clock, its finish
lying later by its tokens over its key's weight; the earliest start goes first. Between two keys that always have
something waiting, what each got over its weight never differs by more than one request of each.
"""

import heapq
from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar

from headrace.gateway.admission.priority import PRIORITIES, PriorityClass

ItemT = TypeVar("ItemT")


@dataclass(slots=True, eq=False, kw_only=True)
class Waiting(Generic[ItemT]):
    """One request that waits."""

    item: ItemT
    priority: PriorityClass
    since_s: float
    start: float
    number: int


class FairQueue(Generic[ItemT]):
    """See the module. Times are seconds of any one clock."""

    def __init__(self, *, max_waiting: int, ageing_s: float) -> None:
        self._max_waiting = max_waiting
        self._ageing_s = ageing_s
        self._lines: dict[PriorityClass, _Line[ItemT]] = {name: _Line() for name in PRIORITIES}
        self._num_pushed = 0

    def push(
        self, item: ItemT, *, priority: PriorityClass, key: str, weight: int, cost: int, now: float
    ) -> Waiting[ItemT] | None:
        """Let `item` wait; None if `max_waiting` of its class do so already. `cost` is its tokens."""
        line = self._lines[priority]
        if len(line) >= self._max_waiting:
            return None
        self._num_pushed += 1
        start = line.start_of(key, share=max(1, cost) / weight)
        waiting = Waiting(item=item, priority=priority, since_s=now, start=start, number=self._num_pushed)
        line.add(waiting)
        return waiting

    def pop(self, now: float) -> ItemT | None:
        """The next, which waits no more; None when nobody waits."""
        oldest = [(name, line.oldest()) for name, line in self._lines.items() if len(line)]
        if not oldest:
            return None
        name, _ = min(oldest, key=lambda one: self._urgency(*one, now=now))
        return self._lines[name].pop().item

    def remove(self, waiting: Waiting[ItemT]) -> None:
        """Its client has left. Does nothing for one that waits no more."""
        self._lines[waiting.priority].remove(waiting)

    def num_waiting(self) -> dict[str, int]:
        """By class."""
        return {name: len(line) for name, line in self._lines.items()}

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def __repr__(self) -> str:
        counts = ", ".join(f"{name}={len(line)}" for name, line in self._lines.items())
        return f"FairQueue({counts})"

    def _urgency(self, name: PriorityClass, oldest: Waiting[ItemT], *, now: float) -> tuple[float, float]:
        rank = PRIORITIES.index(name) - (now - oldest.since_s) / self._ageing_s
        return rank, oldest.since_s


class _Line(Generic[ItemT]):
    """One class. Those who left stay in the heap until they come to its top, or are half of it."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[int, Waiting[ItemT]] = OrderedDict()
        self._heap: list[tuple[float, int]] = []
        self._finish_of_key: dict[str, float] = {}
        self._clock = 0.0

    def start_of(self, key: str, *, share: float) -> float:
        start = max(self._clock, self._finish_of_key.get(key, 0.0))
        self._finish_of_key[key] = start + share
        return start

    def add(self, waiting: Waiting[ItemT]) -> None:
        self._waiting[waiting.number] = waiting
        heapq.heappush(self._heap, (waiting.start, waiting.number))

    def oldest(self) -> Waiting[ItemT]:
        return next(iter(self._waiting.values()))

    def pop(self) -> Waiting[ItemT]:
        while True:
            self._clock, number = heapq.heappop(self._heap)
            waiting = self._waiting.pop(number, None)
            if waiting is not None:
                self._tidy()
                return waiting

    def remove(self, waiting: Waiting[ItemT]) -> None:
        if self._waiting.pop(waiting.number, None) is not None:
            self._tidy()

    def _tidy(self) -> None:
        if not self._waiting:  # nobody waits, so nobody has a claim on anybody
            self._heap.clear()
            self._finish_of_key.clear()
            self._clock = 0.0
        elif len(self._heap) > 2 * len(self._waiting) + 16:
            self._heap = [(waiting.start, number) for number, waiting in self._waiting.items()]
            heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._waiting)
