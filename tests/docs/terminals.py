"""Runs commands of a page as its reader would: in a folder like a checkout, with a terminal of its own for each server.

Ports that a page names become free ones, so that nothing of this machine is in the way.
"""

import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

from tests.docs.blocks import ROOT, one_line

PORTS = ("8000", "8001", "8002", "8080", "8081", "4318")
"""Those that pages name."""
_PORT = re.compile(r"(127\.0\.0\.1:|--port |\bport: )(\d{4})\b")
_SERVER = re.compile(r"(\S*/)?headrace (?P<command>serve|gateway)( |$)|make demo$")
_FLAG = re.compile(r"--port (\d+)")
_START_TIMEOUT_S = 100.0
_PORT_RANGE = range(21_000, 29_000)
"""Below what systems give to those who ask for any port, so that none of these is taken in the meantime."""


def free_ports(count: int) -> list[int]:
    free: list[int] = []
    for port in random.sample(_PORT_RANGE, 500):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        free.append(port)
        if len(free) == count:
            return free
    raise AssertionError("no ports are free")


def is_server(command: str) -> bool:
    """Whether a command serves on until it is stopped."""
    return _SERVER.match(one_line(command)) is not None


class Terminals:
    """What is run in one folder. A server serves on until another takes its port, or until the end."""

    def __init__(self, folder: Path, *, ports: Mapping[str, str], environment: Mapping[str, str]) -> None:
        """`ports` are what ports become."""
        self._folder = folder
        self._ports = ports
        self._servers: dict[str, subprocess.Popen[bytes]] = {}
        """By port."""
        self._starting: dict[str, subprocess.Popen[bytes]] = {}
        self._environment = os.environ | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "HEADRACE_GATEWAY_PORT": ports["8080"],
            "HEADRACE_GATEWAY_ADMIN_PORT": ports["8081"],
            "TERM": "dumb",
            **environment,
        }

    def port(self, documented: str) -> str:
        """What a documented port has become."""
        return self._ports[documented]

    def start(self, command: str) -> None:
        """Start a server; whoever had its port is stopped before."""
        command = self._with_ports(one_line(command))
        found = _SERVER.match(command)
        assert found is not None
        flag = _FLAG.search(command)
        port = flag[1] if flag else self._ports["8000" if found["command"] == "serve" else "8080"]
        if (before := self._servers.pop(port, None)) is not None:
            _interrupt(before)
            _wait_end(before)
        with (self._folder / f"{port}.log").open("ab") as log:
            self._servers[port] = self._starting[port] = subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def run(self, language: str, text: str, *, timeout_s: float = 60.0) -> str:
        """What a block writes, once the servers before it are ready; one that fails is an AssertionError."""
        self.wait_ready()
        text = self._with_ports(text)
        words = ["bash", "-euo", "pipefail", "-c", text] if language == "sh" else [sys.executable, "-c", text]
        process = subprocess.Popen(
            words,
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            output, errors = process.communicate(timeout=timeout_s)
        except BaseException:
            _kill(process)
            process.communicate()
            raise
        assert process.returncode == 0, f"{text}\n{output}\n{errors}"
        return output

    def wait_ready(self) -> None:
        """Returns when every server that was started since has taken a request."""
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        while self._starting:
            port, server = next(iter(self._starting.items()))
            if _is_ready(port):
                del self._starting[port]
            elif server.poll() is not None or time.monotonic() > deadline_s:
                raise AssertionError((self._folder / f"{port}.log").read_text())
            else:
                time.sleep(0.05)

    def stop(self) -> None:
        """Ctrl-C in every terminal."""
        for server in self._servers.values():
            _interrupt(server)
        for server in self._servers.values():
            _wait_end(server)
        self._servers.clear()
        self._starting.clear()

    def _with_ports(self, text: str) -> str:
        return _PORT.sub(lambda found: found[1] + self._ports.get(found[2], found[2]), text)


def _is_ready(port: str) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def _interrupt(server: "subprocess.Popen[bytes]") -> None:
    """A terminal sends it to all that runs there."""
    if server.poll() is None:
        os.killpg(server.pid, signal.SIGINT)


def _wait_end(server: "subprocess.Popen[bytes]") -> None:
    with suppress(subprocess.TimeoutExpired):
        server.wait(timeout=30)
    _kill(server)
    server.wait()


def _kill(process: "subprocess.Popen[bytes] | subprocess.Popen[str]") -> None:
    """It, and what it has left behind in its session."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def terminals_in(
    folder: Path, *, ports: Mapping[str, str] | None = None, environment: Mapping[str, str] | None = None
) -> Iterator[Terminals]:
    """Makes the folder look like a checkout after `make setup`. `ports` fixes what some of the ports become."""
    for path in ROOT.iterdir():
        if not path.name.startswith(".") and not (folder / path.name).exists():
            (folder / path.name).symlink_to(path)
    _link_environment(folder / ".venv")
    free = dict(zip(PORTS, map(str, free_ports(len(PORTS))), strict=True))
    terminals = Terminals(folder, ports=free | dict(ports or {}), environment=environment or {})
    try:
        yield terminals
    finally:
        terminals.stop()


def _link_environment(place: Path) -> None:
    """This interpreter's environment, of which `make` sees that it is up to date."""
    place.mkdir()
    for path in Path(sys.prefix).iterdir():
        if path.name != ".installed":
            (place / path.name).symlink_to(path)
    (place / ".installed").touch()
