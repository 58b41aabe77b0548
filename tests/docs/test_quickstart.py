"""The quickstart's steps, run one after the other as they stand there, on ports of their own."""

import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "quickstart.md"
_BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SERVER = re.compile(r"headrace (?:serve|gateway) .*?--port (\d+)")
_PORTS = ("8001", "8002", "8080", "8081")
_READY_TIMEOUT_S = 100.0
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


class Steps:
    """Runs blocks in one directory; what a block has started serves on until another takes its port."""

    def __init__(self, directory: Path, *, admin_port: int) -> None:
        """`admin_port` is the gateway's, which the page leaves at its default."""
        self._directory = directory
        self._servers: dict[str, subprocess.Popen[bytes]] = {}
        self._environment = os.environ | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "HEADRACE_GATEWAY_ADMIN_PORT": str(admin_port),
            "TERM": "dumb",
        }

    def start(self, command: str, *, port: str) -> None:
        if (before := self._servers.pop(port, None)) is not None:
            self._stop(before)
        log = (self._directory / f"{port}.log").open("ab")
        with log:
            words = ["bash", "-c", f"exec {command}"]
            self._servers[port] = subprocess.Popen(
                words, cwd=self._directory, env=self._environment, stdout=log, stderr=log, start_new_session=True
            )

    def run(self, language: str, text: str) -> str:
        for port in self._servers:
            self._wait_ready(port)
        words = ["bash", "-euo", "pipefail", "-c", text] if language == "sh" else [sys.executable, "-c", text]
        done = subprocess.run(
            words, cwd=self._directory, env=self._environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def stop(self) -> None:
        for server in self._servers.values():
            server.send_signal(signal.SIGTERM)
        for server in self._servers.values():
            self._stop(server)

    def _stop(self, server: "subprocess.Popen[bytes]") -> None:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(timeout=20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()

    def _wait_ready(self, port: str) -> None:
        deadline_s = time.monotonic() + _READY_TIMEOUT_S
        while True:
            if self._servers[port].poll() is not None or time.monotonic() > deadline_s:
                raise AssertionError((self._directory / f"{port}.log").read_text())
            try:
                if httpx.get(f"http://127.0.0.1:{port}/health", timeout=5).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.05)


@contextmanager
def steps_in(directory: Path, *, admin_port: int) -> Iterator[Steps]:
    (directory / "models").symlink_to(ROOT / "models")
    steps = Steps(directory, admin_port=admin_port)
    try:
        yield steps
    finally:
        steps.stop()


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_the_quickstart_works_step_by_step(tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    text = PAGE.read_text(encoding="utf-8")
    ports = free_ports(len(_PORTS))
    for old, new in zip(_PORTS, ports, strict=True):
        text = re.sub(rf"\b{old}\b", str(new), text)
    shown: list[str] = []
    with steps_in(tmp_path, admin_port=ports[-1]) as steps:
        for language, block in _BLOCK.findall(text):
            server = _SERVER.match(block.replace("\\\n", " "))
            if server is not None:
                steps.start(block, port=server[1])
            else:
                shown.append(steps.run(language, block))

    first_chat, story, metrics, _keys, chat_with_key, config = shown
    assert "19" in first_chat
    assert "x-headrace-reason: " in first_chat
    assert story.strip()
    assert 'route="/v1/chat/completions"' in metrics
    assert "x-headrace-cost: " in chat_with_key
    assert '"key":"alice"' in chat_with_key
    assert "keys.yaml" in config
