"""Examiners as those see them who ask: started, asked one question each, heard, and ended whatever happens.

Everything here blocks and is for threads, but for `Examiners.close`, which a loop may call.
"""

import logging
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from headrace.errors import TokenizationError
from headrace.tokenization.examiner.wire import Answer, Question, Refused
from headrace.tokenization.processes.process import describe_exit
from headrace.tokenization.processes.wire import FrameSplitter, encode_frame

_LOG = logging.getLogger(__name__)

_BEGINNING = """\
import os, sys
if niceness := int(sys.argv[3]):
    os.nice(niceness)
    if hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
from headrace.tokenization.examiner.process import main
main()
"""
"""It steps back before it imports anything. Under `SCHED_IDLE` it makes way at once; only nice, it would keep the
core for its turn of milliseconds while a gateway on the same core has requests."""

COMMAND = (sys.executable, "-P", "-c", _BEGINNING)
_TIMEOUT_S = 120.0
"""From start to the last answer; a large vocabulary on a busy machine takes ten seconds."""
_REAP_TIMEOUT_S = 5.0
_RECEIVE_BYTES = 256 * 1024

AnswerT = TypeVar("AnswerT", bound=Answer)


class ExaminerError(TokenizationError):
    """An examiner gave no answer; what it was asked is as open as before."""


class Examination:
    """One examiner and its question. `receive` belongs to one thread at a time; `end` may be called from any."""

    def __init__(self, question: Question, *, command: Sequence[str], niceness: int, timeout_s: float) -> None:
        """Raises ExaminerError."""
        self._deadline_s = time.monotonic() + timeout_s
        self._frames = FrameSplitter()
        self._payloads: list[bytes] = []
        ours, theirs = socket.socketpair()
        self._sock = ours
        try:
            with theirs:
                self._popen = subprocess.Popen(
                    [*command, str(theirs.fileno()), str(timeout_s), str(niceness)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    process_group=0,  # a terminal's Ctrl-C goes to the process that started it alone
                )
        except OSError as error:
            ours.close()
            raise ExaminerError(f"an examiner cannot be started: {error}") from error
        self._question: Question | None = question

    def receive(self, expected: type[AnswerT]) -> AnswerT:
        """The next answer. Raises ExaminerError, and TokenizationError as loading the tokenizer would."""
        try:
            if self._question is not None:
                self._ask(self._question)
            answer = msgspec.msgpack.decode(self._next_payload(), type=Answer)
        except (OSError, msgspec.MsgspecError) as error:
            raise ExaminerError(f"{self!r} gave no answer: {error or type(error).__name__}") from error
        if isinstance(answer, Refused):
            raise TokenizationError(answer.message)
        if not isinstance(answer, expected):
            raise ExaminerError(f"{self!r} answered {type(answer).__name__}, not {expected.__name__}")
        return answer

    def end(self) -> None:
        """Kill it, if it has not ended. Idempotent."""
        self._popen.kill()

    def reap(self) -> None:
        """Kill it, and leave nothing of it. Idempotent. Not while another thread is in `receive`."""
        self._popen.kill()
        self._popen.wait(timeout=_REAP_TIMEOUT_S)
        self._sock.close()

    def _ask(self, question: Question) -> None:
        self._question = None
        self._sock.settimeout(self._left_s())
        self._sock.sendall(encode_frame(question))

    def _next_payload(self) -> bytes:
        while not self._payloads:
            self._sock.settimeout(self._left_s())
            chunk = self._sock.recv(_RECEIVE_BYTES)
            if not chunk:
                code = self._popen.wait(timeout=_REAP_TIMEOUT_S)
                raise ExaminerError(f"an examiner {describe_exit(code)} before it had answered")
            self._payloads += self._frames.feed(chunk)
        return self._payloads.pop(0)

    def _left_s(self) -> float:
        """Raises TimeoutError."""
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("its time is over")
        return left_s

    def __repr__(self) -> str:
        return f"<Examination pid={self._popen.pid} returncode={self._popen.returncode}>"


class Examiners:
    """Starts examinations, and ends those that still run when it is closed."""

    def __init__(self, *, command: Sequence[str] = COMMAND, timeout_s: float = _TIMEOUT_S) -> None:
        self._command = command
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._running: set[Examination] = set()
        self._is_closed = False
        self.num_started = 0

    def start(self, question: Question, *, niceness: int = 0) -> Examination:
        """To be given to `finish` in the end. Raises ExaminerError."""
        with self._lock:
            if self._is_closed:
                raise ExaminerError("the tokenization service is closed")
            examination = Examination(question, command=self._command, niceness=niceness, timeout_s=self._timeout_s)
            self._running.add(examination)
            self.num_started += 1
            return examination

    def ask(self, question: Question, expected: type[AnswerT], *, niceness: int = 0) -> AnswerT:
        """The one answer to `question`. Raises as `Examination.receive`."""
        examination = self.start(question, niceness=niceness)
        try:
            return examination.receive(expected)
        finally:
            self.finish(examination)

    def finish(self, examination: Examination) -> None:
        """Leave nothing of it. Idempotent."""
        with self._lock:
            self._running.discard(examination)
        examination.reap()

    def close(self) -> None:
        """Start no more and kill those that run: whoever waits for one gets ExaminerError at once. Idempotent."""
        with self._lock:
            self._is_closed = True
            for examination in self._running:
                examination.end()

    def finish_all(self) -> None:
        """Leave nothing of those whose askers are gone. After `close`, when no thread asks any more."""
        with self._lock:
            left = list(self._running)
        for examination in left:
            self.finish(examination)

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def __repr__(self) -> str:
        return f"Examiners(num_running={len(self._running)}, num_started={self.num_started})"
