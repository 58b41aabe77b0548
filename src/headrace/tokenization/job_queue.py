"""Which waiting jobs a worker takes next. Pure: the time comes in, jobs come out; whoever uses it holds the lock.

A job's rank is the time it came plus its size divided by the ageing rate, so short jobs go first, and a long one waits
only for what came within a fixed time after it.
"""

import heapq
import itertools
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


class QueuedJob(Protocol):
    """What the queue reads of a job. Jobs are told apart by identity."""

    @property
    def num_bytes(self) -> int: ...

    @property
    def group(self) -> Hashable:
        """Jobs with equal groups may be taken together."""
        ...


JobT = TypeVar("JobT", bound=QueuedJob)


@dataclass(slots=True)
class _Entry(Generic[JobT]):
    rank_s: float
    sequence: int
    job: JobT | None
    """None once the job was taken out; the entry leaves the heap when it comes to the top."""

    def __lt__(self, other: "_Entry[JobT]") -> bool:
        return (self.rank_s, self.sequence) < (other.rank_s, other.sequence)


class JobQueue(Generic[JobT]):
    """Waiting jobs, bounded in number and bytes, ordered by rank within groups. Not thread-safe."""

    def __init__(self, *, max_jobs: int, max_bytes: int, ageing_bytes_per_s: int) -> None:
        self._max_jobs = max_jobs
        self._max_bytes = max_bytes
        self._ageing_bytes_per_s = ageing_bytes_per_s
        self._heaps: dict[Hashable, list[_Entry[JobT]]] = {}
        self._entries: dict[int, _Entry[JobT]] = {}
        self._num_dead = 0
        self._sequence = itertools.count()
        self.num_bytes = 0
        """Bytes of all waiting jobs."""

    def offer(self, job: JobT, *, now_s: float) -> bool:
        """Queue `job`; False when there is no room for it."""
        if len(self) >= self._max_jobs or self.num_bytes + job.num_bytes > self._max_bytes:
            return False
        entry = _Entry(now_s + job.num_bytes / self._ageing_bytes_per_s, next(self._sequence), job)
        heapq.heappush(self._heaps.setdefault(job.group, []), entry)
        self._entries[id(job)] = entry
        self.num_bytes += job.num_bytes
        return True

    def discard(self, job: JobT) -> bool:
        """Take `job` out; False when it is not waiting."""
        entry = self._entries.get(id(job))
        if entry is None:
            return False
        self._release(entry)
        self._num_dead += 1
        if self._num_dead > len(self) + 16:
            self._compact()
        return True

    def take(self, *, max_bytes: int) -> list[JobT]:
        """The most urgent job and, in order, those of its group that fit with it in `max_bytes`. Empty: none wait."""
        heap = self._most_urgent_heap()
        jobs: list[JobT] = []
        num_bytes = 0
        while heap and (job := heap[0].job) is not None and (not jobs or num_bytes + job.num_bytes <= max_bytes):
            self._release(heapq.heappop(heap))
            num_bytes += job.num_bytes
            jobs.append(job)
            self._drop_dead_head(heap)
        if jobs and not heap:
            del self._heaps[jobs[0].group]
        return jobs

    def drain(self) -> list[JobT]:
        """Take out everything, in no particular order."""
        jobs = [entry.job for entry in self._entries.values() if entry.job is not None]
        self._heaps.clear()
        self._entries.clear()
        self._num_dead = self.num_bytes = 0
        return jobs

    def _most_urgent_heap(self) -> list[_Entry[JobT]]:
        for group, heap in list(self._heaps.items()):
            self._drop_dead_head(heap)
            if not heap:
                del self._heaps[group]
        return min(self._heaps.values(), key=lambda heap: heap[0], default=[])

    def _drop_dead_head(self, heap: list[_Entry[JobT]]) -> None:
        while heap and heap[0].job is None:
            heapq.heappop(heap)
            self._num_dead -= 1

    def _release(self, entry: _Entry[JobT]) -> None:
        assert entry.job is not None
        del self._entries[id(entry.job)]
        self.num_bytes -= entry.job.num_bytes
        entry.job = None

    def _compact(self) -> None:
        """Rebuild the heaps without dead entries; amortised, since it runs when these are the majority."""
        self._heaps = {group: [entry for entry in heap if entry.job] for group, heap in self._heaps.items()}
        self._heaps = {group: heap for group, heap in self._heaps.items() if heap}
        for heap in self._heaps.values():
            heapq.heapify(heap)
        self._num_dead = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"JobQueue(num_jobs={len(self)}, num_bytes={self.num_bytes})"
