"""One worker as its supervisor sees it: started, watched, and started again when it ends before its time.

A worker that dies is replaced after a pause that grows with every failure in a row; one that answers nothing for long
is killed first. A wrong setting, or too many failures in a row, is told to the supervisor, which then gives up.
"""

import asyncio
import contextlib
import logging
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Protocol

import msgspec

from headrace.aio.bridge import make_async
from headrace.errors import HeadraceError, SettingsError, UpstreamError
from headrace.gateway.endpoints.wanted import Wanted
from headrace.gateway.workers.link import Told, ask
from headrace.gateway.workers.routes import WANTED_PATH
from headrace.gateway.workers.spec import Refused, Started, WorkerSpec

_LOG = logging.getLogger(__name__)
_START_TIMEOUT_S = 60.0
_ASK_TIMEOUT_S = 5.0
_SILENT_S = 30.0
_LINGER_S = 10.0
_FIRST_PAUSE_S = 0.25
_MAX_PAUSE_S = 10.0
_STEADY_S = 60.0
_MAX_FAILURES = 8
COMMAND = (sys.executable, "-P", "-m", "headrace.gateway.workers.process")

_REPORT: "msgspec.json.Decoder[Started | Refused]" = msgspec.json.Decoder(Started | Refused)


class Supervision(Protocol):
    """Whom a worker's state concerns."""

    def spec_for(self, number: int) -> WorkerSpec:
        """What the worker is to be started with, now."""
        ...

    def note_failed(self, error: HeadraceError) -> None:
        """A worker cannot be had."""
        ...


class Member:
    """The place of one worker; `run` fills it again and again."""

    def __init__(self, number: int, supervision: Supervision, *, command: Sequence[str] = COMMAND) -> None:
        self.number = number
        self.ready = asyncio.Event()
        self.num_starts = 0
        self.url = ""
        self.state: bytes | None = None
        """Its snapshot, and beneath it its health, when it was asked last."""
        self.health: Told | None = None
        self._supervision = supervision
        self._command = tuple(command)
        self._process: subprocess.Popen[bytes] | None = None
        self._socket = ""
        self._wanted: Wanted | None = None
        self._stop_asked = asyncio.Event()
        self._answered_s = 0.0
        self._loop = asyncio.get_running_loop()

    @property
    def is_ready(self) -> bool:
        """Whether it serves."""
        return self.ready.is_set()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    async def run(self) -> None:
        """Have a worker here until it is told to stop, or cannot be had."""
        num_failures = 0
        while True:
            begun_s = self._loop.time()
            error = await self._live_once()
            if error is None:
                return
            was_steady = self._loop.time() - begun_s > _STEADY_S
            num_failures = 1 if was_steady else num_failures + 1
            if isinstance(error, SettingsError) or num_failures >= _MAX_FAILURES:
                self._supervision.note_failed(error)
                return
            _LOG.error("worker %d: %s It is started anew.", self.number, error.message)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(_MAX_PAUSE_S, _FIRST_PAUSE_S * 2.0**num_failures)):
                    await self._stop_asked.wait()

    async def look(self) -> None:
        """Ask how it is; kill it when it has answered nothing for long."""
        if not self.is_ready:
            return
        try:
            self.health = await self.ask("/health")
            self.state = (await self.ask("/state")).body
        except UpstreamError as error:
            silent_s = self._loop.time() - self._answered_s
            if silent_s > _SILENT_S and self.is_ready:
                _LOG.error("worker %d has answered nothing for %.0f s and is killed: %s", self.number, silent_s, error)
                self.kill()

    async def apply(self, wanted: Wanted) -> None:
        """Have the worker do what the admin API wants; it is told once. Raises UpstreamError."""
        if not self.is_ready or self._wanted == wanted:
            return
        await self.ask(WANTED_PATH, method="PUT", body=msgspec.json.encode(wanted))
        self._wanted = wanted

    async def ask(self, path: str, *, method: str = "GET", body: bytes = b"") -> Told:
        """Its answer to one question. Raises UpstreamError."""
        told = await ask(self._socket, path, method=method, body=body, timeout_s=_ASK_TIMEOUT_S)
        self._answered_s = self._loop.time()
        if told.status >= 500 and path != "/health":
            raise UpstreamError(f"Worker {self.number} answered {told.status} to {path}.")
        return told

    def stop(self) -> None:
        """Have it drain and end; called again, have it end at once."""
        self._stop_asked.set()
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it without asking; it is replaced."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    async def _live_once(self) -> HeadraceError | None:
        """From the start of one process to its end; why it ended, None if it was told to."""
        if self._stop_asked.is_set():
            return None
        spec = self._supervision.spec_for(self.number)
        self.num_starts += 1
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = self._spawn(theirs.fileno())
        except OSError as error:
            ours.close()
            return HeadraceError(f"Its process cannot be started: {error}.")
        self._socket, self._wanted = spec.socket, spec.wanted
        try:
            return await self._talk(self._process, spec, ours)
        finally:
            self.ready.clear()
            self.state = self.health = None
            _kill(self._process)

    async def _talk(
        self, process: "subprocess.Popen[bytes]", spec: WorkerSpec, ours: socket.socket
    ) -> HeadraceError | None:
        """As `_follow`, over our end of the connection, which is closed at the end."""
        try:
            reader, writer = await asyncio.open_connection(sock=ours)
        except BaseException:
            ours.close()
            raise
        try:
            return await self._follow(process, spec, reader, writer)
        finally:
            writer.close()

    def _spawn(self, fd: int) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [*self._command, str(fd)],
            stdin=subprocess.DEVNULL,
            pass_fds=[fd],
            start_new_session=True,  # a terminal's Ctrl-C goes to the supervisor alone
        )

    async def _follow(
        self,
        process: "subprocess.Popen[bytes]",
        spec: WorkerSpec,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> HeadraceError | None:
        """Its report, and then nothing but the end of the connection, which is that of the process."""
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                writer.write(msgspec.json.encode(spec) + b"\n")
                line = await reader.readline()
            report = _REPORT.decode(line) if line else None
            if isinstance(report, Started):
                self._note_started(report)
                await reader.read()
        except TimeoutError:
            return HeadraceError(f"Its process ({process.pid}) was not ready within {_START_TIMEOUT_S:.0f} s.")
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            report = None
            _LOG.debug("worker %d: its connection broke: %r", self.number, error)
        self.ready.clear()
        code = await self._wait_end(process)
        if self._stop_asked.is_set():
            return None
        if isinstance(report, Refused):
            return SettingsError(report.message, param=report.param)
        return HeadraceError(f"Its process ({process.pid}) {_ending(code)}.")

    async def _wait_end(self, process: "subprocess.Popen[bytes]") -> int:
        """How the process ended, of which the connection is closed; one that lingers is killed."""
        wait = make_async(process.wait)
        try:
            return await wait(timeout=_LINGER_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return await wait()

    def _note_started(self, report: Started) -> None:
        self.url = report.url
        self._answered_s = self._loop.time()
        self.ready.set()
        _LOG.info("worker %d (pid %s) serves", self.number, self.pid)

    def __repr__(self) -> str:
        state = "ready" if self.is_ready else "not ready"
        return f"Member({self.number}, {state}, pid={self.pid}, num_starts={self.num_starts})"


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """At once, so that cancelling whoever calls it leaves nothing behind. A process that is killed ends within
    milliseconds."""
    if process.poll() is None:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_LINGER_S)


def _ending(code: int) -> str:
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with status {code}"
