"""Lanes: threads that do blocking work for event loops, over one bounded queue.

A worker takes all that has queued up to a size and does it in one call, so nothing waits for a batch to fill, and hands
the results over in one call for each loop. Knows nothing of tokens: `Work` says what a call is.
"""

import asyncio
import concurrent.futures
import logging
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from headrace.errors import HeadraceError, OverloadedError, PayloadTooLargeError, TokenizationError
from headrace.tokenization.job_queue import JobQueue

_LOG = logging.getLogger(__name__)

PayloadT_contra = TypeVar("PayloadT_contra", contravariant=True)
ResultT_co = TypeVar("ResultT_co", covariant=True)
PayloadT = TypeVar("PayloadT")
ResultT = TypeVar("ResultT")
ValueT = TypeVar("ValueT")


class Work(Hashable, Protocol[PayloadT_contra, ResultT_co]):
    """Something to do with payloads, many in one call. Jobs whose works are equal may share a call."""

    def run(self, payloads: Sequence[PayloadT_contra], /) -> Sequence[ResultT_co]:
        """One result for each payload, in order. Runs in a worker thread; is called again, for each payload alone, when
        it raises."""
        ...


@dataclass(frozen=True, slots=True)
class Finished(Generic[ValueT]):
    """A result and what it took."""

    value: ValueT
    queue_wait_s: float
    run_s: float
    """Of the whole call that this result came from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneStatistics:
    """A lane at one moment, and what it has done since it was made."""

    name: str
    num_threads: int
    num_queued: int
    num_queued_bytes: int
    num_running: int
    num_finished: int
    num_failed: int
    num_calls: int


@dataclass(slots=True, eq=False)
class _Job:
    group: Work[Any, Any]
    payload: object
    num_bytes: int
    future: asyncio.Future[Any]
    submitted_s: float


_Outcome = tuple[_Job, Finished[Any] | HeadraceError]


class Lane:
    """Worker threads and their queue. `submit` belongs to event loops; the threads start with the first job or warm-up.

    A worker outlives anything that work raises, also what is not an Exception (a panic inside a Rust library).
    """

    def __init__(
        self,
        name: str,
        *,
        num_threads: int,
        max_queued_jobs: int,
        max_queued_bytes: int,
        batch_max_bytes: int,
        ageing_bytes_per_s: int,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self._num_threads = num_threads
        self._max_queued_bytes = max_queued_bytes
        self._batch_max_bytes = batch_max_bytes
        self._now_s = now_s
        self._changed = threading.Condition()
        self._queue: JobQueue[_Job] = JobQueue(
            max_jobs=max_queued_jobs, max_bytes=max_queued_bytes, ageing_bytes_per_s=ageing_bytes_per_s
        )
        self._running: set[_Job] = set()
        self._warm_ups: list[Callable[[], object]] = []
        self._threads: list[threading.Thread] = []
        self._exits: list[concurrent.futures.Future[None]] = []
        self._is_closed = False
        self._num_finished = 0
        self._num_failed = 0
        self._num_calls = 0

    def submit(
        self, work: Work[PayloadT, ResultT], payload: PayloadT, *, num_bytes: int
    ) -> asyncio.Future[Finished[ResultT]]:
        """Queue `payload` for `work`. Cancelling the future frees its place; work that has begun runs to its end.

        Raises OverloadedError when the queue is full or the lane closed, PayloadTooLargeError when the payload could
        not be queued at any time. The future raises what `work` raised, if it is ours, else TokenizationError from it.
        """
        if num_bytes > self._max_queued_bytes:
            raise PayloadTooLargeError(
                f"a text of about {num_bytes} bytes is longer than this server takes ({self._max_queued_bytes} bytes)",
                param="prompt",
            )
        future: asyncio.Future[Finished[ResultT]] = asyncio.get_running_loop().create_future()
        job = _Job(work, payload, num_bytes, future, self._now_s())
        with self._changed:
            self._refuse_when_closed()
            if not self._queue.offer(job, now_s=job.submitted_s):
                raise OverloadedError(
                    f"tokenization is overloaded: {len(self._queue)} texts of {self._queue.num_bytes} bytes wait in "
                    f"lane {self.name!r}; try again later",
                    retry_after_s=1.0,
                )
            self._start_threads()
            self._changed.notify()
        future.add_done_callback(lambda done: self._leave(job) if done.cancelled() else None)
        return future

    def warm_up(self, call: Callable[[], object], *, starts: bool = True) -> int:
        """Have every thread, also those that start later, make `call` once before its next job; how many will. Threads
        that do not run yet start with this, or without `starts` with the first job."""
        with self._changed:
            self._refuse_when_closed()
            self._warm_ups.append(call)
            if starts:
                self._start_threads()
            self._changed.notify_all()
        return self._num_threads

    def close(self) -> None:
        """Take no more jobs and tell the threads to end; everybody who waits gets OverloadedError. Idempotent."""
        with self._changed:
            self._is_closed = True
            unfinished = [*self._queue.drain(), *self._running]
            self._changed.notify_all()
        message = "the tokenization service was closed while the text waited; try again elsewhere"
        _deliver([(job, OverloadedError(message)) for job in unfinished])

    async def aclose(self, *, timeout_s: float) -> None:
        """Close, and return when the threads have ended. Idempotent.

        A thread that is inside a call for longer than `timeout_s` is left behind, with a warning; it ends after it.
        """
        self.close()
        exits = [asyncio.wrap_future(end) for end in self._exits]
        if exits:
            await asyncio.wait(exits, timeout=timeout_s)
        for thread, end in zip(self._threads, self._exits, strict=True):
            if end.done():
                thread.join()  # it has said that it ends: this takes microseconds
            else:
                _LOG.warning("thread %s is still inside a call after %.1f s and is left behind", thread.name, timeout_s)

    def statistics(self) -> LaneStatistics:
        with self._changed:
            return LaneStatistics(
                name=self.name,
                num_threads=sum(thread.is_alive() for thread in self._threads),
                num_queued=len(self._queue),
                num_queued_bytes=self._queue.num_bytes,
                num_running=len(self._running),
                num_finished=self._num_finished,
                num_failed=self._num_failed,
                num_calls=self._num_calls,
            )

    @property
    def num_queued_bytes(self) -> int:
        """Size of the jobs that wait."""
        return self._queue.num_bytes

    def __len__(self) -> int:
        """Jobs that wait."""
        return len(self._queue)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open"
        return f"Lane({self.name!r}, {state}, num_queued={len(self._queue)}, num_running={len(self._running)})"

    def _refuse_when_closed(self) -> None:
        if self._is_closed:
            raise OverloadedError("the tokenization service is closed; try again elsewhere")

    def _start_threads(self) -> None:
        for number in range(len(self._threads), self._num_threads):
            end: concurrent.futures.Future[None] = concurrent.futures.Future()
            end.set_running_or_notify_cancel()  # from here on nobody can cancel it
            name = f"headrace-{self.name}-{number}"
            thread = threading.Thread(target=self._work_until_closed, args=(end,), name=name, daemon=True)
            self._threads.append(thread)
            self._exits.append(end)
            thread.start()

    def _leave(self, job: _Job) -> None:
        with self._changed:
            self._queue.discard(job)

    def _work_until_closed(self, end: concurrent.futures.Future[None]) -> None:
        """The life of a worker thread."""
        num_warmed = 0
        try:
            while True:
                warm_ups, jobs = self._wait_for_something(num_warmed)
                if warm_ups is None:
                    return
                for warm_up in warm_ups:
                    _run_warm_up(warm_up)
                num_warmed += len(warm_ups)
                if jobs:
                    self._run_and_deliver(jobs)
        finally:
            end.set_result(None)

    def _wait_for_something(self, num_warmed: int) -> tuple[list[Callable[[], object]] | None, list[_Job]]:
        """New warm-ups, else jobs; `(None, [])` when the lane is closed."""
        with self._changed:
            while not self._is_closed:
                if warm_ups := self._warm_ups[num_warmed:]:
                    return warm_ups, []
                if jobs := self._queue.take(max_bytes=self._batch_max_bytes):
                    self._running.update(jobs)
                    return [], jobs
                self._changed.wait()
        return None, []

    def _run_and_deliver(self, jobs: list[_Job]) -> None:
        outcomes = self._run(jobs)
        with self._changed:
            self._running.difference_update(jobs)
            self._num_finished += len(outcomes)
            self._num_failed += sum(isinstance(outcome, HeadraceError) for _, outcome in outcomes)
        _deliver(outcomes)

    def _run(self, jobs: list[_Job]) -> list[_Outcome]:
        """One call for all; if that fails, one for each, so that a bad payload fails alone."""
        jobs = [job for job in jobs if not job.future.done()]
        if not jobs:
            return []
        with self._changed:
            self._num_calls += 1
        begun_s = self._now_s()
        try:
            results = jobs[0].group.run([job.payload for job in jobs])
            run_s = self._now_s() - begun_s
            return [
                (job, Finished(result, begun_s - job.submitted_s, run_s))
                for job, result in zip(jobs, results, strict=True)
            ]
        except BaseException as error:  # noqa: BLE001 - the thread's outermost boundary; Rust panics are no Exceptions
            if len(jobs) == 1:
                return [(jobs[0], _as_ours(error))]
        return [outcome for job in jobs for outcome in self._run([job])]


def _as_ours(error: BaseException) -> HeadraceError:
    if isinstance(error, HeadraceError):
        return error
    ours = TokenizationError(f"tokenization failed: {type(error).__name__}: {error}")
    ours.__cause__ = error
    return ours


def _run_warm_up(call: Callable[[], object]) -> None:
    try:
        call()
    except BaseException:  # noqa: BLE001 - the thread's outermost boundary; whoever encodes next gets the error
        _LOG.exception("warming up a tokenizer failed")


def _deliver(outcomes: Iterable[_Outcome]) -> None:
    """Hand each loop its results in one call; results for a loop that has closed are for nobody."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_Outcome]] = {}
    for outcome in outcomes:
        by_loop.setdefault(outcome[0].future.get_loop(), []).append(outcome)
    for loop, of_loop in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve, of_loop)
        except RuntimeError:
            if not loop.is_closed():
                raise


def _resolve(outcomes: list[_Outcome]) -> None:
    for job, outcome in outcomes:
        if job.future.done():
            continue
        if isinstance(outcome, HeadraceError):
            job.future.set_exception(outcome)
        else:
            job.future.set_result(outcome)
