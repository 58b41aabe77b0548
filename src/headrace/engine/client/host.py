"""Where the engine core runs: a child process, or for debugging a thread of this process.

A host starts the core at one end of a socket pair and hands out the other end; the core ends when that end closes. What
is said over the socket is not known here.
"""

import asyncio
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, Protocol, TypeVar

from headrace.engine.core.loop import BuildCore, serve_core
from headrace.engine.wire.channel import BlockingChannel
from headrace.errors import EngineError

ResultT = TypeVar("ResultT")

_KILL_TIMEOUT_S = 10.0


class CoreHost(Protocol):
    """Starts one core once, and ends it."""

    @property
    def pid(self) -> int | None:
        """The core's own process; None before it starts, and for a core in this process."""
        ...

    async def start(self) -> socket.socket:
        """Start the core; returns the front end's end of its channel, which belongs to the caller. After an error, or
        when cancelled: `stop`."""
        ...

    async def stop(self, *, timeout_s: float) -> str:
        """Return when the core is gone: how it ended, for an error message. Idempotent.

        Waits `timeout_s` for it to end by itself, then kills it where that is possible; kills at once when cancelled.
        """
        ...


class ProcessHost:
    """The core as a child process, started by `python -m MODULE FD`: no fork of this process, no `__main__` guard."""

    def __init__(self, *, module: str = "headrace.engine.core.process") -> None:
        self._module = module
        self._process: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return f"<ProcessHost {self._module} pid={self.pid}>"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    async def start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = self._spawn(theirs.fileno())
            except OSError as error:
                ours.close()
                raise EngineError(f"cannot start the engine core's process: {error}") from error
        return ours

    async def stop(self, *, timeout_s: float) -> str:
        process = self._process
        if process is None:
            return "was never started"
        if process.returncode is None:
            await _wait_or_kill(process, timeout_s=timeout_s)
        return describe_exit(process)

    def _spawn(self, fd: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", self._module, str(fd)],
            stdin=subprocess.DEVNULL,
            pass_fds=[fd],
            process_group=0,  # a terminal's Ctrl-C goes to the front end alone
        )


async def _wait_or_kill(process: subprocess.Popen[bytes], *, timeout_s: float) -> None:
    exited = OwnThread(process.wait)
    try:
        if not await exited.finishes_within(timeout_s):
            process.kill()
            await exited.finishes_within(_KILL_TIMEOUT_S)
    finally:
        if process.returncode is None:
            process.kill()
        exited.leave()


def describe_exit(process: subprocess.Popen[bytes]) -> str:
    code = process.returncode
    if code is None:
        return f"(pid {process.pid}) does not end, though it was killed"
    if code < 0:
        return f"(pid {process.pid}) was killed by {signal.Signals(-code).name}"
    return f"(pid {process.pid}) exited with status {code}"


class ThreadHost:
    """The core in a thread of this process: one debugger sees both halves. A hung core cannot be killed here."""

    def __init__(self, *, build_core: BuildCore) -> None:
        self._build_core = build_core
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        return f"<ThreadHost {'running' if self._thread is not None and self._thread.is_alive() else 'not running'}>"

    @property
    def pid(self) -> int | None:
        return None

    async def start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, args=(theirs,), name="headrace-core", daemon=True)
        self._thread.start()
        return ours

    async def stop(self, *, timeout_s: float) -> str:
        thread = self._thread
        if thread is None:
            return "was never started"
        ended = OwnThread(thread.join)
        try:
            has_ended = await ended.finishes_within(timeout_s)
        finally:
            ended.leave()
        return "(in this process) ended" if has_ended else "(in this process) does not end"

    def _serve(self, sock: socket.socket) -> None:
        serve_core(BlockingChannel(sock), build_core=self._build_core)


class OwnThread(Generic[ResultT]):
    """One blocking call in a thread that ends with it; the loop's default executor would keep the thread."""

    def __init__(self, func: Callable[[], ResultT]) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="headrace-core-wait")
        self._call = asyncio.get_running_loop().run_in_executor(self._executor, func)

    async def finishes_within(self, timeout_s: float) -> bool:
        done, _ = await asyncio.wait([self._call], timeout=timeout_s)
        return bool(done)

    async def result(self) -> ResultT:
        """What the call returns or raises. Cancelling this leaves the call going on."""
        await asyncio.wait([self._call])
        return self._call.result()

    def leave(self) -> None:
        """End the thread, or let it end when its call returns."""
        self._executor.shutdown(wait=self._call.done())
