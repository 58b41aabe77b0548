"""How fast /health answers while 50 prompts of 300,000 words each are being tokenized.

    .venv/bin/python benchmarks/health_under_load.py [--prompts N] [--words N] [--json]

One process serves, one sends every prompt at once to /tokenize and reads what comes back, and this one asks for /health
every few milliseconds. Nothing of the model is measured.
"""

import argparse
import asyncio
import http.client
import os
import random
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
PROBE_EVERY_S = 0.005
IDLE_PROBES = 200
NUM_DIFFERENT_WORDS = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """Of /health, in milliseconds."""

    num_probes: int
    median_ms: float
    p99_ms: float
    max_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    num_prompts: int
    num_words: int
    num_tokens: int
    """Of all prompts."""
    sent_in_s: float
    """From the first byte sent to the last answer."""
    idle: Latencies
    loaded: Latencies


def measure(*, num_prompts: int, num_words: int) -> Result:
    with Fleet() as fleet:
        child = fleet.start("server", ["serve", str(MODEL), "--port", "0", "--log-level", "warning"])
        (address,) = fleet.wait_ready([child], timeout_s=60, on_ready=lambda _: None)
        sender = [sys.executable, __file__, "--send-to", address.url]
        sizes = ["--prompts", str(num_prompts), "--words", str(num_words)]
        with subprocess.Popen([*sender, *sizes], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdout.readline()  # its prompts are written
            prober = Prober(address.url)
            idle = prober.probe(until=lambda num: num >= IDLE_PROBES)
            began_at = time.monotonic()
            process.stdin.write(b"go\n")
            process.stdin.close()
            loaded = prober.probe(until=lambda _: process.poll() is not None)
            sent_in_s = time.monotonic() - began_at
            num_tokens = msgspec.json.decode(process.stdout.read(), type=int)
    return Result(
        num_prompts=num_prompts,
        num_words=num_words,
        num_tokens=num_tokens,
        sent_in_s=round(sent_in_s, 2),
        idle=idle,
        loaded=loaded,
    )


class Prober:
    """Asks for /health on one connection, again and again."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)

    def probe(self, *, until: Callable[[int], bool]) -> Latencies:
        latencies_ms: list[float] = []
        while not until(len(latencies_ms)):
            began_at = time.perf_counter()
            self._connection.request("GET", "/health")
            response = self._connection.getresponse()
            response.read()
            latencies_ms.append((time.perf_counter() - began_at) * 1000)
            assert response.status == 200
            time.sleep(PROBE_EVERY_S)
        return Latencies(
            num_probes=len(latencies_ms),
            median_ms=round(statistics.median(latencies_ms), 2),
            p99_ms=round(statistics.quantiles(latencies_ms, n=100)[98], 2),
            max_ms=round(max(latencies_ms), 2),
        )


def send(url: str, *, num_prompts: int, num_words: int) -> None:
    """Write the prompts, say so, wait for a word, send them all at once; at the end print how many tokens they had.

    Clients are other machines' work, so this process leaves the cores to the server where both want them.
    """
    os.nice(19)
    bodies = [msgspec.json.encode({"prompt": random_words(seed, num_words)}) for seed in range(num_prompts)]
    print("written", flush=True)
    sys.stdin.readline()
    print(asyncio.run(_send_all(url, bodies)))


def random_words(seed: int, num_words: int) -> str:
    """No two seeds share a beginning, which a tokenizer could remember."""
    source = random.Random(seed)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(source.choices(letters, k=source.randint(2, 9))) for _ in range(NUM_DIFFERENT_WORDS)]
    return " ".join(source.choices(words, k=num_words))


async def _send_all(url: str, bodies: list[bytes]) -> int:
    return sum(await asyncio.gather(*(_send(url, body) for body in bodies)))


async def _send(url: str, body: bytes) -> int:
    """The tokens of the prompt. Most of the answer is thrown away: reading it as JSON would take the server's cores."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    head = b"POST /tokenize HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
    writer.write(head + body)
    status = await reader.readuntil(b"\r\n\r\n")
    assert status.startswith(b"HTTP/1.1 200"), status
    count = await reader.readuntil(b",")
    while await reader.read(1 << 20):
        pass
    writer.close()
    return int(count.rpartition(b":")[2].rstrip(b","))


def show(result: Result) -> None:
    print(f"{result.num_prompts} prompts of {result.num_words} words, {result.num_tokens} tokens: {result.sent_in_s} s")
    print(f"{'/health':10}{'probes':>8}{'median':>10}{'p99':>10}{'max':>10}   ms")
    for name, each in (("idle", result.idle), ("loaded", result.loaded)):
        print(f"{name:10}{each.num_probes:>8}{each.median_ms:>10}{each.p99_ms:>10}{each.max_ms:>10}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=50)
    parser.add_argument("--words", type=int, default=300_000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--send-to", metavar="URL", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.send_to is not None:
        send(arguments.send_to, num_prompts=arguments.prompts, num_words=arguments.words)
        return
    result = measure(num_prompts=arguments.prompts, num_words=arguments.words)
    if arguments.json:
        print(msgspec.json.encode(result).decode())
    else:
        show(result)


if __name__ == "__main__":
    main()
