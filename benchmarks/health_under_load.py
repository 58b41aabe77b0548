"""How fast /health answers while 50 prompts of 300,000 words each are being tokenized.

    .venv/bin/python benchmarks/health_under_load.py [--route tokenize|chat] [--prompts N] [--words N] [--url URL]

One process serves (or a server that runs already, at --url), one sends every prompt at once and reads what comes back,
and this one asks for /health every few milliseconds. Nothing of the model is measured: a chat of so many words is
tokenized, and then refused for its length. 2,400,000 words make bodies of almost 16 MB, the largest that are taken.
"""

import argparse
import asyncio
import http.client
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from headrace.cli.fleet import Fleet

MODEL = Path(__file__).resolve().parents[1] / "models" / "demo"
ROUTES = {"tokenize": "/tokenize", "chat": "/v1/chat/completions"}
STATUSES = {"tokenize": 200, "chat": 400}
PROBE_EVERY_S = 0.005
IDLE_PROBES = 200
NUM_DIFFERENT_WORDS = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """In milliseconds."""

    num_probes: int
    median_ms: float
    p99_ms: float
    max_ms: float

    @classmethod
    def of(cls, latencies_s: list[float]) -> "Latencies":
        in_ms = sorted(latency_s * 1000 for latency_s in latencies_s)
        return cls(
            num_probes=len(in_ms),
            median_ms=round(statistics.median(in_ms), 2),
            p99_ms=round(in_ms[(99 * len(in_ms)) // 100], 2),
            max_ms=round(in_ms[-1], 2),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    route: str
    num_prompts: int
    num_words: int
    num_answered: int
    """Each with the status that was expected."""
    sent_in_s: float
    """From the first byte sent to the last answer."""
    idle: Latencies
    loaded: Latencies
    machine: Latencies
    """How late this process came from its own sleeps under the load: what any process waits for here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is sent."""

    route: str
    num_prompts: int
    num_words: int

    def arguments(self) -> list[str]:
        sizes = ["--prompts", str(self.num_prompts), "--words", str(self.num_words)]
        return ["--route", self.route, *sizes]


def measure(load: Load, *, url: str | None) -> Result:
    """Of the server at `url`, or of one that is started for it."""
    if url is not None:
        return measure_running(load, url=url)
    with Fleet() as fleet:
        child = fleet.start("server", ["serve", str(MODEL), "--port", "0", "--log-level", "warning"])
        (address,) = fleet.wait_ready([child], timeout_s=60, on_ready=lambda _: None)
        return measure_running(load, url=address.url)


def measure_running(load: Load, *, url: str) -> Result:
    sender = [sys.executable, __file__, "--send-to", url, *load.arguments()]
    with subprocess.Popen(sender, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()  # its prompts are written
        prober = Prober(url)
        idle, _ = prober.probe(until=lambda num: num >= IDLE_PROBES)
        began_at = time.monotonic()
        process.stdin.write(b"go\n")
        process.stdin.close()
        loaded, machine = prober.probe(until=lambda _: process.poll() is not None)
        sent_in_s = time.monotonic() - began_at
        num_answered = msgspec.json.decode(process.stdout.read(), type=int)
    return Result(
        route=load.route,
        num_prompts=load.num_prompts,
        num_words=load.num_words,
        num_answered=num_answered,
        sent_in_s=round(sent_in_s, 2),
        idle=idle,
        loaded=loaded,
        machine=machine,
    )


class Prober:
    """Asks for /health on one connection, again and again."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)

    def probe(self, *, until: Callable[[int], bool]) -> tuple[Latencies, Latencies]:
        """Of /health, and of this process's own sleeps."""
        latencies_s: list[float] = []
        overslept_s: list[float] = []
        while not until(len(latencies_s)):
            began_at = time.perf_counter()
            self._connection.request("GET", "/health")
            response = self._connection.getresponse()
            response.read()
            answered_at = time.perf_counter()
            latencies_s.append(answered_at - began_at)
            assert response.status == 200
            time.sleep(PROBE_EVERY_S)
            overslept_s.append(time.perf_counter() - answered_at - PROBE_EVERY_S)
        return Latencies.of(latencies_s), Latencies.of(overslept_s)


def send(url: str, load: Load) -> None:
    """Write the prompts, say so, wait for a word, send them all at once; at the end print how many were answered.

    Clients are other machines' work, so this process leaves the cores to the server where both want them.
    """
    os.nice(19)
    bodies = [_body(load, random_words(seed, load.num_words)) for seed in range(load.num_prompts)]
    print("written", flush=True)
    sys.stdin.readline()
    print(asyncio.run(_send_all(url, load.route, bodies)))


def _body(load: Load, prompt: str) -> bytes:
    if load.route == "chat":
        return msgspec.json.encode({"messages": [{"role": "user", "content": prompt}]})
    return msgspec.json.encode({"prompt": prompt})


def random_words(seed: int, num_words: int) -> str:
    """No two seeds share a beginning, which a tokenizer could remember."""
    source = random.Random(seed)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(source.choices(letters, k=source.randint(2, 9))) for _ in range(NUM_DIFFERENT_WORDS)]
    return " ".join(source.choices(words, k=num_words))


async def _send_all(url: str, route: str, bodies: list[bytes]) -> int:
    statuses = await asyncio.gather(*(_send(url, ROUTES[route], body) for body in bodies))
    return statuses.count(STATUSES[route])


async def _send(url: str, path: str, body: bytes) -> int:
    """The status. What is answered is thrown away: reading it as JSON would take the server's cores."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    status_line = await reader.readline()
    while await reader.read(1 << 20):
        pass
    writer.close()
    return int(status_line.split()[1])


def show(result: Result) -> None:
    asked = f"{result.num_answered} of {result.num_prompts} prompts of {result.num_words} words"
    print(f"{ROUTES[result.route]}, {asked}: {result.sent_in_s} s")
    print(f"{'/health':16}{'probes':>8}{'median':>10}{'p99':>10}{'max':>10}   ms")
    rows = (("idle", result.idle), ("loaded", result.loaded), ("machine's own", result.machine))
    for name, each in rows:
        print(f"{name:16}{each.num_probes:>8}{each.median_ms:>10}{each.p99_ms:>10}{each.max_ms:>10}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--route", choices=tuple(ROUTES), default="tokenize")
    parser.add_argument("--prompts", type=int, default=50)
    parser.add_argument("--words", type=int, default=300_000)
    parser.add_argument("--url", metavar="URL", help="of a server that runs already")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--send-to", metavar="URL", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    load = Load(route=arguments.route, num_prompts=arguments.prompts, num_words=arguments.words)
    if arguments.send_to is not None:
        send(arguments.send_to, load)
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends what it has started too
    result = measure(load, url=arguments.url)
    if arguments.json:
        print(msgspec.json.encode(result).decode())
    else:
        show(result)


if __name__ == "__main__":
    main()
