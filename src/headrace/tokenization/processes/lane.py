"""Tokenizer processes: other cores for short texts, and a place for tokenizers whose calls hold the GIL or may crash.

`ProcessLane` has the `submit` of a thread lane. It chooses the process, waits when none is free, replaces a process
that died, hung or talked nonsense, tries its text once more elsewhere, and refuses a text that broke two.
"""

import asyncio
import itertools
import logging
import random
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from headrace.errors import HeadraceError, OverloadedError, PayloadTooLargeError, TokenizationError
from headrace.tokenization.lanes import Finished
from headrace.tokenization.processes.poison import PoisonMemory, refusal
from headrace.tokenization.processes.process import ProcessJob, TokenizerProcess
from headrace.tokenization.processes.settings import ProcessLaneSettings, ProcessLaneStatistics, ProcessStatistics
from headrace.tokenization.processes.wire import Load, Loaded, LoadFailed
from headrace.tokenization.surrogates import refuse_lone_surrogates
from headrace.tokenization.tokenizer import TokenIds, Tokenizer
from headrace.tokenization.works import EncodeTexts

_LOG = logging.getLogger(__name__)

WORKER_COMMAND = (sys.executable, "-P", "-m", "headrace.tokenization.processes.worker")
"""What starts a process: no fork of this one, and no `__main__` guard in the program that uses it."""

_MAX_BREAKS = 2
_MAX_SUSPECTS = 1024
_FIRST_BACKOFF_S = 0.1
_MAX_BACKOFF_S = 5.0


class ProcessLane:
    """Tokenizer processes and the texts that wait for them. Belongs to one event loop.

    The processes start with the first tokenizer that is registered. Offer it a text when `takes` says so; whether that
    will wait tells `has_free_process`. A text for which `is_poison` holds must not be encoded in this process either.
    """

    def __init__(
        self,
        settings: ProcessLaneSettings,
        *,
        name: str = "process",
        command: Sequence[str] = WORKER_COMMAND,
        rng: random.Random | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`command` starts a process and is given the number of its socket and a limit in seconds as arguments."""
        self.name = name
        self._settings = settings
        self._command = command
        self._rng = rng or random.Random()  # noqa: S311 - spreads load, keeps no secret
        self._now_s = now_s
        self._loads: dict[str, Load] = {}
        self._fingerprints: dict[int, str] = {}
        self._unloadable: dict[int, str] = {}
        self._processes: list[TokenizerProcess] = []
        self._leaving: set[TokenizerProcess] = set()
        self._waiting: deque[ProcessJob] = deque()
        self._poison = PoisonMemory(max_breaks=_MAX_BREAKS, max_texts=_MAX_SUSPECTS)
        self._numbers = itertools.count(1)
        self._restarts: set[asyncio.TimerHandle] = set()
        self._has_changed = asyncio.Event()
        self._is_closed = False
        self._num_breaks_in_a_row = 0
        self._num_finished = self._num_failed = self._num_retried = self._num_replaced = 0

    def register(self, tokenizer: Tokenizer, path: str | Path) -> None:
        """Have every process load the tokenizer in `path`, which must be `tokenizer` itself; call it in the loop.

        A process compares fingerprints; where they differ, or loading fails, the lane does not take the tokenizer.
        """
        self._refuse_when_closed()
        if tokenizer.fingerprint in self._loads or not self._settings.num_processes:
            return
        load = Load(len(self._loads), str(path))
        self._loads[tokenizer.fingerprint] = load
        self._fingerprints[load.number] = tokenizer.fingerprint
        for process in self._processes:
            process.load(load)
        if len(self._loads) == 1:
            for _ in range(self._settings.num_processes):
                self._start_process()

    def takes(self, tokenizer: Tokenizer, *, num_bytes: int) -> bool:
        """Whether texts of this size and tokenizer belong here at all."""
        load = self._loads.get(tokenizer.fingerprint)
        is_known = load is not None and load.number not in self._unloadable
        return is_known and num_bytes <= self._settings.max_text and not self._is_closed

    def has_free_process(self) -> bool:
        """Whether the next text would not wait."""
        return not self._waiting and bool(self._free_processes())

    @property
    def has_suspects(self) -> bool:
        """Whether any text broke a process and was not encoded since; where not, none is poison."""
        return len(self._poison) > 0

    def is_poison(self, tokenizer: Tokenizer, text: str) -> bool:
        """Whether `text` broke so many processes that nobody should encode it. Costs nothing while none broke."""
        return self._poison.is_poison(tokenizer.fingerprint, text)

    def submit(self, work: EncodeTexts, text: str, *, num_bytes: int) -> asyncio.Future[Finished[TokenIds]]:
        """Encode `text` in a process. Cancelling the future frees its place; what a process has begun it ends.

        Raises, at once or through the future: OverloadedError (queue full, no process in time, lane closed),
        PayloadTooLargeError, InvalidRequestError (not valid Unicode), PoisonTextError, TokenizationError.
        """
        self._refuse_when_closed()
        load = self._load_of(work.tokenizer)
        if num_bytes > self._settings.max_text:
            limit = self._settings.max_text
            raise PayloadTooLargeError(
                f"a text of about {num_bytes} bytes is longer than tokenizer processes take ({limit} bytes)",
                param="prompt",
            )
        refuse_lone_surrogates(text)
        if self.is_poison(work.tokenizer, text):
            raise refusal(work.tokenizer.fingerprint, text)
        job = self._job(work, text, num_bytes=num_bytes, tokenizer_number=load.number)
        self._waiting.append(job)
        self._dispatch()
        if len(self._waiting) > self._settings.max_queued_jobs:
            self._waiting.remove(job)
            self._refuse_full()
        if self._waiting:  # and so this one does too: it is the last
            self._limit_wait(job)
        job.future.add_done_callback(lambda done: self._leave(job) if done.cancelled() else None)
        return job.future

    async def wait_ready(self, *, timeout_s: float) -> None:
        """Return when every process has loaded every tokenizer. Raises TokenizationError when that takes too long."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._num_ready() < self._settings.num_processes and self._loads and not self._is_closed:
                    self._has_changed.clear()
                    await self._has_changed.wait()
        except TimeoutError:
            raise TokenizationError(f"{self!r} was not ready within {timeout_s:g} s") from None

    def close(self) -> None:
        """Take no more texts and kill the processes; everybody who waits gets OverloadedError. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        for timer in self._restarts:
            timer.cancel()
        for process in list(self._processes):
            process.end("the lane was closed")
        while self._waiting:
            self._fail(self._waiting.popleft(), _closed_error())
        self._has_changed.set()

    async def aclose(self, *, timeout_s: float) -> None:
        """Close, and return when the processes are gone and reaped. Idempotent. Warns of one that does not go."""
        self.close()
        for process in list(self._leaving):
            if await process.wait_gone(timeout_s=timeout_s):
                self._leaving.discard(process)
            else:
                _LOG.warning("%r is not gone %.1f s after it was killed", process, timeout_s)

    def statistics(self) -> ProcessLaneStatistics:
        return ProcessLaneStatistics(
            name=self.name,
            processes=tuple(
                ProcessStatistics(
                    pid=process.pid,
                    state=process.state,
                    num_running=process.num_running,
                    num_answered=process.num_answered,
                )
                for process in self._processes
            ),
            num_queued=len(self._waiting),
            num_queued_bytes=sum(job.num_bytes for job in self._waiting),
            num_running=sum(process.num_running for process in self._processes),
            num_finished=self._num_finished,
            num_failed=self._num_failed,
            num_retried=self._num_retried,
            num_replaced=self._num_replaced,
            num_poisonous=self._poison.num_poisonous,
        )

    def __len__(self) -> int:
        """Texts that wait for a process."""
        return len(self._waiting)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else f"{self._num_ready()} of {len(self._processes)} processes ready"
        return f"ProcessLane({self.name!r}, {state}, num_queued={len(self._waiting)})"

    # What the processes tell.

    def tokenizer_loaded(self, answer: Loaded | LoadFailed) -> None:
        if isinstance(answer, LoadFailed):
            self._give_up_tokenizer(answer.number, answer.message)
        elif answer.fingerprint != self._fingerprints[answer.number]:
            self._give_up_tokenizer(answer.number, "its files are not those of the tokenizer that is in use")
        self._has_changed.set()
        self._dispatch()

    def job_answered(self, job: ProcessJob, outcome: Finished[TokenIds] | HeadraceError) -> None:
        self._num_breaks_in_a_row = 0
        self._poison.forgive(job.tokenizer.fingerprint, job.text)
        if isinstance(outcome, HeadraceError):
            self._fail(job, outcome)
        else:
            self._num_finished += 1
            if not job.future.done():
                job.future.set_result(outcome)
        self._dispatch()

    def process_ended(self, process: TokenizerProcess, jobs: Sequence[ProcessJob]) -> None:
        self._processes.remove(process)
        self._leaving.add(process)
        if self._is_closed:
            for job in jobs:
                self._fail(job, _closed_error())
            return
        self._forget_those_gone()
        _LOG.warning("%s ended and is replaced; %d texts are tried again", process.name, len(jobs))
        for job in reversed(jobs):
            self._try_again(job, is_suspect=job is jobs[0])
        self._replace()
        self._has_changed.set()
        self._dispatch()

    # Jobs.

    def _job(self, work: EncodeTexts, text: str, *, num_bytes: int, tokenizer_number: int) -> ProcessJob:
        return ProcessJob(
            number=next(self._numbers),
            tokenizer=work.tokenizer,
            tokenizer_number=tokenizer_number,
            text=text,
            num_bytes=num_bytes,
            add_special_tokens=work.add_special_tokens,
            future=asyncio.get_running_loop().create_future(),
            submitted_s=self._now_s(),
        )

    def _dispatch(self) -> None:
        """Give waiting texts, in order, to processes with a permit left."""
        while self._waiting and (free := self._free_processes()):
            job = self._waiting.popleft()
            if job.wait_timer is not None:
                job.wait_timer.cancel()
            job.sent_s = self._now_s()
            choose(free, self._rng).send(job)

    def _free_processes(self) -> list[TokenizerProcess]:
        permits = self._settings.permits_per_process
        return [process for process in self._processes if process.is_ready and process.num_running < permits]

    def _num_ready(self) -> int:
        return sum(process.is_ready for process in self._processes)

    def _try_again(self, job: ProcessJob, *, is_suspect: bool) -> None:
        """Only the text that the process was at is blamed. One that was tried twice, or left, is not tried again."""
        if is_suspect and self._poison.blame(job.tokenizer.fingerprint, job.text):
            self._fail(job, refusal(job.tokenizer.fingerprint, job.text))
        elif not job.future.done():
            self._num_retried += 1
            self._waiting.appendleft(job)
            self._limit_wait(job)

    def _limit_wait(self, job: ProcessJob) -> None:
        timeout_s = self._settings.queue_timeout_s
        job.wait_timer = job.future.get_loop().call_later(timeout_s, self._give_up_waiting, job)

    def _leave(self, job: ProcessJob) -> None:
        if job.wait_timer is not None:
            job.wait_timer.cancel()
        if job in self._waiting:
            self._waiting.remove(job)

    def _give_up_waiting(self, job: ProcessJob) -> None:
        self._waiting.remove(job)
        self._fail(job, OverloadedError(f"no tokenizer process was free within {self._settings.queue_timeout_s:g} s"))

    def _fail(self, job: ProcessJob, error: HeadraceError) -> None:
        self._num_failed += 1
        if job.wait_timer is not None:
            job.wait_timer.cancel()
        if not job.future.done():
            job.future.set_exception(error)

    def _refuse_when_closed(self) -> None:
        if self._is_closed:
            raise _closed_error()

    def _refuse_full(self) -> None:
        raise OverloadedError(
            f"tokenization is overloaded: {len(self._waiting)} texts wait in lane {self.name!r}; try again later",
            retry_after_s=1.0,
        )

    # Tokenizers and processes.

    def _load_of(self, tokenizer: Tokenizer) -> Load:
        load = self._loads.get(tokenizer.fingerprint)
        if load is None:
            raise TokenizationError(f"no tokenizer process knows the tokenizer {tokenizer.name}; register it")
        if (reason := self._unloadable.get(load.number)) is not None:
            raise TokenizationError(f"tokenizer processes cannot load {load.path}: {reason}")
        return load

    def _give_up_tokenizer(self, number: int, reason: str) -> None:
        if number in self._unloadable:
            return
        path = self._loads[self._fingerprints[number]].path
        _LOG.error("tokenizer processes cannot load %s and do not take its texts: %s", path, reason)
        self._unloadable[number] = reason
        for job in [job for job in self._waiting if job.tokenizer_number == number]:
            self._waiting.remove(job)
            self._fail(job, TokenizationError(f"tokenizer processes cannot load {path}: {reason}"))

    def _start_process(self) -> None:
        process = TokenizerProcess(
            name=f"headrace-{self.name}-{next(self._numbers)}",
            command=self._command,
            owner=self,
            start_timeout_s=self._settings.start_timeout_s,
            job_timeout_s=self._settings.job_timeout_s,
        )
        self._processes.append(process)
        process.start(load for load in self._loads.values() if load.number not in self._unloadable)

    def _replace(self) -> None:
        """At once the first time, then with growing pauses until a process answers again."""
        self._num_replaced += 1
        self._num_breaks_in_a_row += 1
        if self._num_breaks_in_a_row == 1:
            self._start_process()
            return
        delay_s = min(_MAX_BACKOFF_S, _FIRST_BACKOFF_S * 2.0 ** min(self._num_breaks_in_a_row - 2, 16))

        def restart() -> None:
            self._restarts.discard(timer)
            self._start_process()

        timer = asyncio.get_running_loop().call_later(delay_s, restart)
        self._restarts.add(timer)

    def _forget_those_gone(self) -> None:
        self._leaving = {process for process in self._leaving if not process.is_gone}


def choose(free: Sequence[TokenizerProcess], rng: random.Random) -> TokenizerProcess:
    """The less loaded of two random ones: nearly as even as asking all, and nobody herds to the same one."""
    candidates = rng.sample(free, 2) if len(free) > 1 else free
    return min(candidates, key=lambda process: (process.num_running_bytes, process.num_running))


def _closed_error() -> OverloadedError:
    return OverloadedError("the tokenization service was closed while the text waited; try again elsewhere")
