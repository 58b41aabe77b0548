"""Runs one command of the suite: what it prints to the terminal goes on to ours, its JSON comes back.

A command that fails or takes too long is an error that its caller notes; it ends nothing else.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from headrace.errors import HeadraceError

_TAIL_CHARS = 4000
_ERROR_CHARS = 600
_END_TIMEOUT_S = 30.0
_CHUNK = 1 << 14
_ANSI = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class CommandError(HeadraceError):
    """A benchmark ended without results; the message has the end of what it said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One benchmark."""

    argv: Sequence[str]
    folder: Path
    timeout_s: float


def run(command: Command) -> bytes:
    """Its standard output (blocking). Raises CommandError."""
    is_terminal = sys.stderr.isatty()
    environment = os.environ | ({"FORCE_COLOR": "1", "TTY_INTERACTIVE": "1"} if is_terminal else {})
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command.argv,
            cwd=command.folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.PIPE,
            env=environment,
            process_group=0,  # Ctrl-C goes to us alone, and we end it
        )
        with _Deadline(process, command.timeout_s) as deadline:
            tail = _forward(process)
            process.wait()
        if deadline.is_over:
            raise CommandError(f"it was not done within {command.timeout_s:g} s")
        if process.returncode != 0:
            raise CommandError(f"it ended with {process.returncode}: {tail}")
        output.seek(0)
        return output.read()


def _forward(process: "subprocess.Popen[bytes]") -> str:
    """Pass on what the process says until it says no more; the end of it."""
    assert process.stderr is not None
    tail = b""
    with process.stderr as stream:
        while chunk := os.read(stream.fileno(), _CHUNK):
            sys.stderr.buffer.write(chunk)
            sys.stderr.buffer.flush()
            tail = (tail + chunk)[-_TAIL_CHARS:]
    text = _ANSI.sub("", tail.decode(errors="replace")).strip()
    return text[-_ERROR_CHARS:]


class _Deadline:
    """Ends a process that takes too long, by SIGTERM and then by SIGKILL: benchmarks end their own on the first."""

    def __init__(self, process: "subprocess.Popen[bytes]", timeout_s: float) -> None:
        self.is_over = False
        self._process = process
        self._timers = [
            threading.Timer(timeout_s, self._end, [signal.SIGTERM]),
            threading.Timer(timeout_s + _END_TIMEOUT_S, self._end, [signal.SIGKILL]),
        ]

    def __enter__(self) -> Self:
        for timer in self._timers:
            timer.daemon = True
            timer.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        for timer in self._timers:
            timer.cancel()
        if self._process.poll() is None:  # we are interrupted
            self._process.terminate()
            try:
                self._process.wait(timeout=_END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _end(self, number: signal.Signals) -> None:
        self.is_over = True
        self._process.send_signal(number)
