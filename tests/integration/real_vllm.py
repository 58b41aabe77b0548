"""Starts vLLM's CPU build, from the environment that `benchmarks/peers/install.py vllm` makes, with the demo model."""

import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event

import httpx

from tests.integration.service import DEMO_MODEL

PEER_FILE = Path.home() / ".cache" / "headrace" / "peers" / "vllm" / "peer.json"
START_TIMEOUT_S = 500.0
BLOCK_SIZE = 32
"""The least that its attention for CPUs takes."""


@dataclass(frozen=True, kw_only=True)
class Vllm:
    """A running vLLM server."""

    url: str

    def count(self, name: str, **labels: str) -> float:
        """The sum of its metric `name` over the series that have `labels`."""
        text = httpx.get(f"{self.url}/metrics", timeout=30).text
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        lines = [line for line in text.splitlines() if re.match(rf"{re.escape(name)}[ {{]", line)]
        return sum(float(line.rpartition(" ")[2]) for line in lines if all(label in line for label in wanted))


@contextmanager
def running_vllm(directory: Path) -> Iterator[Vllm]:
    """A server for the demo model, with KV events. Raises RuntimeError with its log when it does not come up."""
    port, events, replay = _free_ports(3)
    peer = json.loads(PEER_FILE.read_text())
    log = directory / "vllm.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [peer["python"], "-m", "vllm.entrypoints.openai.api_server", *_arguments(port, events, replay)],
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, **peer["environment"], **_ENVIRONMENT},
            start_new_session=True,
        )
    try:
        _wait_ready(f"http://127.0.0.1:{port}", process, log)
        yield Vllm(url=f"http://127.0.0.1:{port}")
    finally:
        _end(process)


_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB: the least it takes
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


def _arguments(port: int, events: int, replay: int) -> list[str]:
    publisher = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://127.0.0.1:{events}",
        "replay_endpoint": f"tcp://127.0.0.1:{replay}",
    }
    return [
        *("--model", str(DEMO_MODEL), "--served-model-name", "demo", "--host", "127.0.0.1", "--port", str(port)),
        *("--dtype", "bfloat16", "--max-model-len", "1024", "--max-num-seqs", "16", "--block-size", str(BLOCK_SIZE)),
        *("--enforce-eager", "--enable-prefix-caching", "--enable-prompt-tokens-details"),
        *("--kv-events-config", json.dumps(publisher)),
    ]


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _wait_ready(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            Event().wait(0.5)
    raise RuntimeError(f"vLLM did not come up:\n{log.read_text(errors='replace')[-3000:]}")


def _end(process: "subprocess.Popen[bytes]") -> None:
    """All of its processes, which form a group."""
    for sign, timeout_s in ((signal.SIGTERM, 20.0), (signal.SIGKILL, 10.0)):
        try:
            os.killpg(process.pid, sign)
            process.wait(timeout=timeout_s)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue
