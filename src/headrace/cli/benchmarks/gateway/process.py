"""A process of the benchmark on a core of its own: started, awaited, measured, ended."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import msgspec

from headrace.cli.benchmarks import process_tree
from headrace.cli.benchmarks.gateway import load, upstream
from headrace.cli.benchmarks.gateway.job import Job, Outcome
from headrace.cli.benchmarks.gateway.workload import MAX_MODEL_LEN, MODEL
from headrace.errors import HeadraceError

_END_TIMEOUT_S = 15.0
_POLL_S = 0.005
_MAX_JOB_S = 1800.0


class BenchProcessError(HeadraceError):
    """A process of the benchmark did not start, or failed; the message has the end of its log."""


class PinnedProcess:
    """A command on one core, in the folder of its log. A context manager; leaving it ends the whole process tree."""

    def __init__(
        self, name: str, command: Sequence[str], *, core: int, log: Path, environment: Mapping[str, str]
    ) -> None:
        self.name = name
        self.begun_s = time.monotonic()
        self._log = log
        with log.open("wb") as log_file:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                cwd=log.parent,
                process_group=0,  # Ctrl-C goes to us alone, and we end it
                preexec_fn=lambda: os.sched_setaffinity(0, {core}),  # noqa: PLW1509 - no threads here
            )

    @property
    def pids(self) -> list[int]:
        return process_tree.tree_of(self._process.pid)

    def wait_until_answers(self, port: int, *, path: str, timeout_s: float) -> float:
        """Return, with the seconds since its start, when GET `path` is answered with 200 (blocking)."""
        deadline_s = time.monotonic() + timeout_s
        while not _answers(port, path):
            if self._process.poll() is not None:
                raise self.error(f"ended with {self._process.returncode} before it was ready")
            if time.monotonic() > deadline_s:
                raise self.error(f"was not ready within {timeout_s:g} s")
            time.sleep(_POLL_S)
        return time.monotonic() - self.begun_s

    def resident_bytes(self) -> int:
        """Of all its processes, now."""
        return sum(_resident_of(pid) for pid in self.pids)

    def error(self, what: str) -> BenchProcessError:
        lines = self._log.read_bytes()[-8192:].decode(errors="replace").strip().splitlines()[-12:]
        return BenchProcessError(f"{self.name} {what}; the end of its log:\n" + "\n".join(lines))

    def pause(self) -> None:
        """Until `resume`: another one is measured."""
        process_tree.send(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        process_tree.send(self._process.pid, signal.SIGCONT)

    def close(self) -> None:
        """Ask it to end, and kill what has not ended then. Idempotent."""
        if self._process.returncode is not None:
            return
        started = process_tree.births_of(self.pids)
        self.resume()
        self._process.terminate()
        try:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=_END_TIMEOUT_S)
        finally:
            process_tree.kill(started)
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"PinnedProcess({self.name}, pid={self._process.pid})"


def start_upstream(ports: Sequence[int], *, core: int, log: Path) -> PinnedProcess:
    """The fake endpoints."""
    command = [sys.executable, "-m", upstream.__name__, MODEL, str(MAX_MODEL_LEN), *map(str, ports)]
    process = PinnedProcess("the fake endpoint", command, core=core, log=log, environment={})
    try:
        process.wait_until_answers(ports[-1], path="/health", timeout_s=10.0)
    except BaseException:
        process.close()
        raise
    return process


def run_job(job: Job, *, core: int) -> Outcome:
    """Have the load generator do a job (blocking). Raises BenchProcessError."""
    command = [sys.executable, "-m", load.__name__]
    done = subprocess.run(
        command,
        input=msgspec.json.encode(job),
        capture_output=True,
        check=False,
        timeout=_MAX_JOB_S,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )
    if done.returncode != 0:
        raise BenchProcessError(f"the load generator failed: {done.stderr.decode(errors='replace')[-2000:]}")
    return msgspec.json.decode(done.stdout, type=Outcome)


def free_ports(num_ports: int) -> list[int]:
    """Ports that nobody listens on now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(num_ports)]
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _answers(port: int, path: str) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0) as sock:
            sock.sendall(f"GET {path} HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n".encode())
            return sock.recv(64).startswith(b"HTTP/1.1 200")
    except OSError:
        return False


def _resident_of(pid: int) -> int:
    try:
        found = re.search(r"^VmRSS:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0
