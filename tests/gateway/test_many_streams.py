"""Two thousand streams at a time for a minute: nothing is lost, and the gateway's memory does not grow."""

import asyncio
import json
import os
import resource
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from headrace.cli.fleet import Child, Fleet
from headrace.ready_file import Address
from headrace.testing.fake_upstream import DONE, Exchange, FakeUpstream, chunk_event
from tests.gateway.support import chat_body, chat_request

pytestmark = [
    pytest.mark.slow,
    pytest.mark.integration,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the gateway's memory from /proc"),
]

NUM_ENGINES = 4
NUM_STREAMS = 2000
NUM_EVENTS = 120
"""Of each stream."""
INTERVAL_S = 0.5
NUM_CONNECTING = 64
MAX_GROWTH_BYTES = 8 << 20
"""Of the memory between the first and the last third of the minute."""
NUM_FILES = 3 * NUM_STREAMS


class Metronome:
    """All streams take their next event from it."""

    def __init__(self) -> None:
        self._beat = asyncio.Event()
        self.num_beats = 0

    def beat(self) -> None:
        self.num_beats += 1
        beat, self._beat = self._beat, asyncio.Event()
        beat.set()

    async def reaches(self, number: int) -> None:
        while self.num_beats < number:
            await self._beat.wait()


@dataclass(frozen=True, slots=True)
class Usage:
    """Of the gateway's process."""

    rss_bytes: int
    cpu_s: float


def usage_of(process: int) -> Usage:
    resident = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    return Usage(resident * resource.getpagesize(), ticks / os.sysconf("SC_CLK_TCK"))


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with Fleet() as fleet:
        yield fleet


def start_gateway(fleet: Fleet, upstreams: list[FakeUpstream]) -> Child:
    endpoints = [argument for upstream in upstreams for argument in ("--endpoint", upstream.url)]
    return fleet.start("gateway", ["gateway", "--port", "0", "--admin-port", "0", *endpoints])


async def ready(child: Child) -> Address:
    async with asyncio.timeout(60):
        while (address := child.address) is None:
            assert child.process.poll() is None, child.log_tail()
            await asyncio.sleep(0.05)
        return address


def expected(number: int) -> bytes:
    return b"".join(chunk_event(f"{number}-{at}") for at in range(NUM_EVENTS)) + DONE


async def read_stream(address: Address, number: int, *, connecting: asyncio.Semaphore) -> bytes:
    """The whole answer to one request, its chunks joined."""
    host, port = address.url.removeprefix("http://").split(":")
    async with connecting:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(chat_request(chat_body(stream=True, n=number)))
        head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 "), head
    parts = []
    while size := int(await reader.readuntil(b"\r\n"), 16):
        parts.append((await reader.readexactly(size + 2))[:-2])
    writer.close()
    return b"".join(parts)


@pytest.mark.skipif(
    resource.getrlimit(resource.RLIMIT_NOFILE)[0] < NUM_FILES, reason=f"needs {NUM_FILES} open files (ulimit -n)"
)
async def test_two_thousand_streams_for_a_minute_lose_nothing_and_memory_stays_flat(fleet: Fleet) -> None:
    metronome = Metronome()

    async def behaviour(exchange: Exchange) -> None:
        number = exchange.request.json()["n"]
        await exchange.start_chunked()
        for at in range(NUM_EVENTS):
            await metronome.reaches(at + 1)
            await exchange.chunk(chunk_event(f"{number}-{at}"))
        await exchange.chunk(DONE)
        await exchange.chunk(b"")

    async with AsyncExitStack() as stack:
        upstreams = [await stack.enter_async_context(FakeUpstream(behaviour=behaviour)) for _ in range(NUM_ENGINES)]
        child = start_gateway(fleet, upstreams)
        address = await ready(child)
        connecting = asyncio.Semaphore(NUM_CONNECTING)
        idle = usage_of(child.process.pid)
        async with asyncio.TaskGroup() as group:
            streams = [
                group.create_task(read_stream(address, number, connecting=connecting)) for number in range(NUM_STREAMS)
            ]
            while sum(upstream.num_running for upstream in upstreams) < NUM_STREAMS:
                await asyncio.sleep(0.1)
            usages = await play(metronome, child.process.pid)
        num_left = await in_flight_in_the_end(address)

    report(idle, usages)
    assert [number for number, stream in enumerate(streams) if stream.result() != expected(number)] == []
    assert num_left == 0
    third = len(usages) // 3
    growth = mean_rss(usages[-third:]) - mean_rss(usages[:third])
    assert growth < MAX_GROWTH_BYTES


async def play(metronome: Metronome, process: int) -> list[Usage]:
    """All the beats, and the gateway's usage at each."""
    usages = []
    loop = asyncio.get_running_loop()
    next_s = loop.time()
    for _ in range(NUM_EVENTS):
        metronome.beat()
        usages.append(usage_of(process))
        next_s += INTERVAL_S
        await asyncio.sleep(max(0.0, next_s - loop.time()))
    return usages


async def in_flight_in_the_end(address: Address) -> int:
    """What the gateway still counts at its endpoints; its state is a second old."""
    async with httpx.AsyncClient() as client, asyncio.timeout(20):
        while True:
            state = (await client.get(f"{address.admin_url}/state")).json()
            num_left = sum(endpoint["num_in_flight"] for endpoint in state["endpoints"])
            if num_left == 0:
                return 0
            await asyncio.sleep(0.2)


def mean_rss(usages: list[Usage]) -> float:
    return sum(one.rss_bytes for one in usages) / len(usages)


def report(idle: Usage, usages: list[Usage]) -> None:
    mib = [one.rss_bytes / (1 << 20) for one in usages]
    cpu_s = usages[-1].cpu_s - usages[0].cpu_s
    print(json.dumps({"idle_mib": idle.rss_bytes / (1 << 20), "first_mib": mib[0], "last_mib": mib[-1],
                      "max_mib": max(mib), "cpu_s": cpu_s, "seconds": NUM_EVENTS * INTERVAL_S}))  # fmt: skip
