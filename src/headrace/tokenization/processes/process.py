"""One tokenizer process: started once, asked one thing after another, killed when it hangs, dies or talks nonsense.

A thread of its own starts and reaps it, because both block; all else happens on the event loop. What is to become of
the jobs of a process that ended is its owner's affair.
"""

import asyncio
import concurrent.futures
import logging
import signal
import socket
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import msgspec
import numpy as np

from headrace.aio.bridge import run_in_loop
from headrace.aio.tasks import TaskOwner
from headrace.errors import HeadraceError, InvalidRequestError, TokenizationError
from headrace.tokenization.lanes import Finished
from headrace.tokenization.processes.wire import (
    Answer,
    Encode,
    EncodeFailed,
    FrameSplitter,
    Ids,
    Load,
    Loaded,
    LoadFailed,
    encode_frame,
)
from headrace.tokenization.tokenizer import TokenIds, Tokenizer

_LOG = logging.getLogger(__name__)

_GRACE_S = 0.05
"""An answer may lie unread when its deadline passes, because the event loop was held up; it is read within this."""


@dataclass(slots=True, eq=False, kw_only=True)
class ProcessJob:
    """One text on its way through a process."""

    number: int
    tokenizer: Tokenizer
    tokenizer_number: int
    text: str
    num_bytes: int
    add_special_tokens: bool
    future: asyncio.Future[Finished[TokenIds]]
    submitted_s: float
    sent_s: float = 0.0
    wait_timer: asyncio.TimerHandle | None = None


class ProcessOwner(Protocol):
    """Whom a process tells what happens to it, on the event loop."""

    def tokenizer_loaded(self, answer: Loaded | LoadFailed, /) -> None: ...

    def job_answered(self, job: ProcessJob, outcome: Finished[TokenIds] | HeadraceError, /) -> None: ...

    def process_ended(self, process: "TokenizerProcess", jobs: Sequence[ProcessJob], /) -> None:
        """`jobs` are those it did not answer, in order: the first is the one that it was at."""
        ...


class TokenizerProcess(asyncio.Protocol):
    """Belongs to one event loop. `num_answered` counts jobs; `end` may be called at any time, and again."""

    def __init__(
        self, *, name: str, command: Sequence[str], owner: ProcessOwner, start_timeout_s: float, job_timeout_s: float
    ) -> None:
        self.name = name
        self.num_answered = 0
        self.has_ended = False
        self._command = command
        self._owner = owner
        self._start_timeout_s = start_timeout_s
        self._job_timeout_s = job_timeout_s
        self._loop = asyncio.get_running_loop()
        self._tasks = TaskOwner(name)
        self._unconnected: socket.socket | None = None
        self._transport: asyncio.Transport | None = None
        self._frames = FrameSplitter()
        self._decoder: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)
        self._expected: deque[Load | ProcessJob] = deque()
        self._num_loads = 0
        self._timer: asyncio.TimerHandle | None = None
        self._lock = threading.Lock()
        self._popen: subprocess.Popen[bytes] | None = None
        self._gone: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._gone.set_running_or_notify_cancel()
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)

    def start(self, loads: Iterable[Load]) -> None:
        """Start the process; it loads `loads` before anything else."""
        for load in loads:
            self._expect(load)
        self._num_loads = len(self._expected)
        self._arm(self._start_timeout_s)
        self._thread.start()

    def load(self, load: Load) -> None:
        """Have one more tokenizer loaded."""
        self._num_loads += 1
        self._expect(load)
        self._write(load)

    def send(self, job: ProcessJob) -> None:
        """Have `job` done after those before it."""
        self._expect(job)
        self._write(Encode(job.number, job.tokenizer_number, job.text, job.add_special_tokens))

    def end(self, reason: str) -> None:
        """Kill the process, which has nothing to lose; what it did not answer goes back to the owner."""
        if self.has_ended:
            return
        self.has_ended = True
        self._arm(None)
        if self._transport is not None:
            self._transport.abort()
        with self._lock:
            if self._popen is not None:
                self._popen.kill()
        _LOG.debug("%s is ended: %s", self.name, reason)
        jobs = [job for job in self._expected if isinstance(job, ProcessJob)]
        self._expected.clear()
        self._owner.process_ended(self, jobs)

    async def wait_gone(self, *, timeout_s: float) -> bool:
        """Whether nothing of the process was left within `timeout_s`. Call `end` first."""
        gone = asyncio.wrap_future(self._gone)
        await asyncio.wait([gone], timeout=timeout_s)
        await self._tasks.aclose()
        if self._unconnected is not None:  # a task that is cancelled before its first step closes nothing
            self._unconnected.close()
        if not self._gone.done():
            return False
        self._thread.join()  # it has said that it ends: this takes microseconds
        return True

    @property
    def is_ready(self) -> bool:
        """Whether it is connected and has loaded all its tokenizers."""
        return self._transport is not None and not self.has_ended and not self._num_loads

    @property
    def is_gone(self) -> bool:
        """Whether nothing of it is left."""
        return self._gone.done() and not len(self._tasks)

    @property
    def pid(self) -> int | None:
        return self._popen.pid if self._popen is not None else None

    @property
    def num_running(self) -> int:
        return len(self._expected) - self._num_loads

    @property
    def num_running_bytes(self) -> int:
        return sum(job.num_bytes for job in self._expected if isinstance(job, ProcessJob))

    @property
    def state(self) -> str:
        return "ended" if self.has_ended else "ready" if self.is_ready else "starting"

    def __repr__(self) -> str:
        return f"<TokenizerProcess {self.name} {self.state} pid={self.pid} num_running={self.num_running}>"

    # In the thread.

    def _live(self) -> None:
        try:
            ours, theirs = socket.socketpair()
            try:
                with theirs:
                    popen = self._spawn(theirs.fileno())
            except OSError as error:
                ours.close()
                self._tell(self.end, f"it cannot be started: {error}")
                return
            if not self._tell(self._opened, ours):
                ours.close()
            popen.wait()
            self._tell(self.end, f"it {describe_exit(popen.returncode)}")
            if popen.returncode != -signal.SIGKILL:
                _LOG.warning("%s (pid %d) %s", self.name, popen.pid, describe_exit(popen.returncode))
        finally:
            self._gone.set_result(None)

    def _spawn(self, fd: int) -> subprocess.Popen[bytes]:
        limit_s = 2 * max(self._start_timeout_s, self._job_timeout_s)
        popen = subprocess.Popen(
            [*self._command, str(fd), str(limit_s)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[fd],
            process_group=0,  # a terminal's Ctrl-C goes to the process that started it alone
        )
        with self._lock:
            self._popen = popen
            if self.has_ended:
                popen.kill()
        return popen

    def _tell(self, func: Callable[..., object], *args: object) -> bool:
        """Call `func` in the loop; False when that has closed and the process is nobody's."""
        try:
            run_in_loop(self._loop, func, *args)
        except RuntimeError:
            if not self._loop.is_closed():
                raise
            return False
        return True

    # On the event loop.

    def _opened(self, sock: socket.socket) -> None:
        if self.has_ended:
            sock.close()
        else:
            self._unconnected = sock
            self._tasks.spawn(self._connect(sock), name=f"{self.name}-connect")

    async def _connect(self, sock: socket.socket) -> None:
        try:
            await self._loop.create_unix_connection(lambda: self, sock=sock)
        except OSError as error:
            sock.close()
            self.end(f"its socket cannot be used: {error}")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._unconnected = None
        self._transport = cast("asyncio.Transport", transport)
        if self.has_ended:
            self._transport.abort()
            return
        for expected in self._expected:
            assert isinstance(expected, Load)
            self._write(expected)

    def data_received(self, data: bytes) -> None:
        try:
            for payload in self._frames.feed(data):
                if self.has_ended:
                    return
                self._receive(self._decoder.decode(payload))
        except (msgspec.MsgspecError, TokenizationError) as error:
            _LOG.warning("%s gave an answer that is none and is killed: %s", self.name, error)
            self.end("its answer was none")

    def connection_lost(self, exc: BaseException | None) -> None:
        self.end(f"its connection closed: {exc}" if exc else "its connection closed")

    def _write(self, question: Load | Encode) -> None:
        if self._transport is not None:
            self._transport.write(encode_frame(question))

    def _expect(self, question: Load | ProcessJob) -> None:
        self._expected.append(question)
        if len(self._expected) == 1 and self._transport is not None:
            self._arm_for_next()

    def _receive(self, answer: Answer) -> None:
        """Raises TokenizationError when this is no answer to what was asked."""
        asked = self._expected[0] if self._expected else None
        if isinstance(answer, Loaded | LoadFailed):
            if not isinstance(asked, Load) or asked.number != answer.number:
                raise TokenizationError(f"{type(answer).__name__} of a tokenizer that was not asked for")
            self._next()
            self._num_loads -= 1
            self._owner.tokenizer_loaded(answer)
        else:
            if not isinstance(asked, ProcessJob) or asked.number != answer.job:
                raise TokenizationError(f"{type(answer).__name__} for a text that was not asked for")
            outcome = _outcome(asked, answer)
            self._next()
            self.num_answered += 1
            self._owner.job_answered(asked, outcome)

    def _next(self) -> None:
        self._expected.popleft()
        self._arm_for_next()

    def _arm_for_next(self) -> None:
        if not self._expected:
            self._arm(None)
        else:
            is_load = isinstance(self._expected[0], Load)
            self._arm(self._start_timeout_s if is_load else self._job_timeout_s)

    def _arm(self, timeout_s: float | None) -> None:
        """Set the deadline of what is expected next."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if timeout_s is None else self._loop.call_later(timeout_s, self._is_late, timeout_s)

    def _is_late(self, timeout_s: float) -> None:
        self._timer = self._loop.call_later(_GRACE_S, self._is_overdue, timeout_s)

    def _is_overdue(self, timeout_s: float) -> None:
        _LOG.warning("%s (pid %s) did not answer within %g s and is killed", self.name, self.pid, timeout_s)
        self.end(f"no answer within {timeout_s:g} s")


def describe_exit(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"


def _outcome(job: ProcessJob, answer: Ids | EncodeFailed) -> Finished[TokenIds] | HeadraceError:
    """Raises TokenizationError when the ids cannot be those of this tokenizer."""
    if isinstance(answer, EncodeFailed):
        if answer.is_text_at_fault:
            return InvalidRequestError(answer.message, param="prompt")
        return TokenizationError(f"tokenization failed in a tokenizer process: {answer.message}")
    if len(answer.token_ids) % np.dtype(np.uint32).itemsize:
        raise TokenizationError(f"{len(answer.token_ids)} bytes are no 32-bit ids")
    token_ids = np.frombuffer(answer.token_ids, dtype=np.uint32)
    if token_ids.size and int(token_ids.max()) >= job.tokenizer.vocab_size:
        raise TokenizationError(f"id {token_ids.max()} is outside the vocabulary of {job.tokenizer.vocab_size}")
    return Finished(token_ids, job.sent_s - job.submitted_s, answer.run_s)
