"""Child processes of one command: started together, watched until each says it is ready, ended together.

A child tells its address by a ready file (`ServerSettings.ready_file`). Its output goes to a log file whose end is
shown when it fails. Nothing here knows what the children serve.
"""

import contextlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace.errors import EngineError
from headrace.ready_file import Address, read_ready_file

_POLL_S = 0.02
_TERMINATE_DEADLINE_S = 10.0
_LOG_TAIL_CHARACTERS = 2000


@dataclass(frozen=True, slots=True, eq=False)
class Child:
    """One process of the fleet. `address` is None until it is ready."""

    name: str
    process: "subprocess.Popen[bytes]"
    ready_file: Path
    log_file: Path

    @property
    def address(self) -> Address | None:
        """Where the child serves, once it says so."""
        return read_ready_file(self.ready_file)

    def log_tail(self) -> str:
        """The end of what the child printed."""
        return self.log_file.read_text(errors="replace")[-_LOG_TAIL_CHARACTERS:]


class Fleet:
    """Owns its children: leaving the context ends every one, by SIGTERM and, past a deadline, by SIGKILL."""

    def __init__(self) -> None:
        self._children: list[Child] = []
        self._directory = tempfile.TemporaryDirectory(prefix="headrace-")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with _signals_ignored():
            self._end_children()
            self._directory.cleanup()

    def start(self, name: str, arguments: Sequence[str]) -> Child:
        """Start `headrace ARGUMENTS --ready-file ...` as a child. It gets no Ctrl-C of its own: the fleet ends it."""
        directory = Path(self._directory.name)
        ready_file, log_file = directory / f"{name}.json", directory / f"{name}.log"
        with log_file.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "headrace.cli.main", *arguments, "--ready-file", str(ready_file)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        child = Child(name, process, ready_file, log_file)
        self._children.append(child)
        return child

    def wait_ready(
        self, children: Sequence[Child], *, timeout_s: float, on_ready: Callable[[Child], None]
    ) -> list[Address]:
        """Block until each child is ready; its addresses in order. Raises EngineError with the log of one that ends
        or is late."""
        deadline = time.monotonic() + timeout_s
        addresses: dict[Child, Address] = {}
        while len(addresses) < len(children):
            for child in children:
                address = child.address if child not in addresses else None
                if address is not None:
                    addresses[child] = address
                    on_ready(child)
                elif child.process.poll() is not None:
                    raise EngineError(f"{child.name} ended with status {child.process.returncode}:\n{child.log_tail()}")
            if time.monotonic() > deadline:
                late = ", ".join(child.name for child in children if child not in addresses)
                raise EngineError(f"{late} not ready within {timeout_s:.0f} s:\n{children[0].log_tail()}")
            threading.Event().wait(_POLL_S)
        return [addresses[child] for child in children]

    def ended(self) -> list[Child]:
        """Children that are no longer running."""
        return [child for child in self._children if child.process.poll() is not None]

    def _end_children(self) -> None:
        for child in self._children:
            with contextlib.suppress(ProcessLookupError):
                child.process.terminate()
        deadline = time.monotonic() + _TERMINATE_DEADLINE_S
        for child in self._children:
            try:
                child.process.wait(timeout=max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()


@contextlib.contextmanager
def _signals_ignored() -> Iterator[None]:
    """A second Ctrl-C must not leave half of the children behind."""
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
