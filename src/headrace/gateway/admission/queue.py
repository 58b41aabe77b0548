"""The requests that wait for a place at an endpoint: by class, with ageing, and fairly between keys. Pure.

Theory. Between classes, the one whose oldest request has the lowest rank goes first, and each `ageing_s` of waiting
lowers a rank by one: of two classes, the one whose oldest came two ageings before the other's goes first. Within a
class, keys share by start-time fair queueing: each key's next request has a start and a finish on a virtual clock, its
finish lying later by its tokens over its key's weight; the earliest start goes first, and the key's one after it starts
where it finishes. Between two keys that always have something waiting, what each got over its weight never differs by
more than one request of each, whoever leaves meanwhile.
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
    key: str
    share: float
    """What it takes of its key's part: its tokens over the key's weight."""
    since_s: float
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
        share = max(1, cost) / weight
        waiting = Waiting(item=item, priority=priority, key=key, share=share, since_s=now, number=self._num_pushed)
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
    """One class. Only a key's next request has its place in the heap; entries of a start that is no longer its key's
    stay there until they come to its top, or are half of it."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[int, Waiting[ItemT]] = OrderedDict()
        self._of_key: dict[str, OrderedDict[int, Waiting[ItemT]]] = {}
        self._start_of_key: dict[str, float] = {}
        """Of its next request, also where none waits now."""
        self._heap: list[tuple[float, int, str]] = []
        self._clock = 0.0

    def add(self, waiting: Waiting[ItemT]) -> None:
        key = waiting.key
        self._waiting[waiting.number] = waiting
        of_key = self._of_key.get(key)
        if of_key is None:
            of_key = self._of_key[key] = OrderedDict()
            self._call_at(key, max(self._clock, self._start_of_key.get(key, 0.0)), number=waiting.number)
        of_key[waiting.number] = waiting

    def oldest(self) -> Waiting[ItemT]:
        return next(iter(self._waiting.values()))

    def pop(self) -> Waiting[ItemT]:
        while True:
            start, _, key = heapq.heappop(self._heap)
            if key in self._of_key and self._start_of_key[key] == start:
                break
        self._clock = start
        waiting = next(iter(self._of_key[key].values()))
        self._take_out(waiting)
        self._start_of_key[key] = start + waiting.share
        if (of_key := self._of_key.get(key)) is not None:
            self._call_at(key, start + waiting.share, number=next(iter(of_key)))
        self._tidy()
        return waiting

    def remove(self, waiting: Waiting[ItemT]) -> None:
        if waiting.number in self._waiting:
            self._take_out(waiting)
            self._tidy()

    def _call_at(self, key: str, start: float, *, number: int) -> None:
        self._start_of_key[key] = start
        heapq.heappush(self._heap, (start, number, key))

    def _take_out(self, waiting: Waiting[ItemT]) -> None:
        del self._waiting[waiting.number]
        of_key = self._of_key[waiting.key]
        del of_key[waiting.number]
        if not of_key:
            del self._of_key[waiting.key]

    def _tidy(self) -> None:
        if not self._waiting:  # nobody waits, so nobody has a claim on anybody
            self._heap.clear()
            self._start_of_key.clear()
            self._clock = 0.0
        elif len(self._heap) > 2 * len(self._of_key) + 16:
            self._heap = [(self._start_of_key[key], next(iter(of_key)), key) for key, of_key in self._of_key.items()]
            heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._waiting)
