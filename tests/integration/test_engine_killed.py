"""An engine that is killed takes only the requests that it was streaming with it."""

import asyncio
import os
import signal
import time
from pathlib import Path

import httpx
import msgspec
import pytest

from headrace.openai.sse import DONE_DATA, SseDecoder
from tests.integration.service import Service

pytestmark = pytest.mark.integration

NUM_STREAMS = 6
LONG = {
    "model": "demo",
    "messages": [{"role": "user", "content": "Tell me a short story about a fox."}],
    "stream": True,
    "temperature": 0,
    "max_tokens": 1500,
    "ignore_eos": True,
}
SHORT = {"model": "demo", "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 4}


class Stream:
    """One streaming request: which endpoint answers it, and its events so far."""

    def __init__(self) -> None:
        self.endpoint = ""
        self.events: list[bytes] = []
        self.started = asyncio.Event()

    async def run(self, client: httpx.AsyncClient, url: str) -> None:
        decoder = SseDecoder()
        async with client.stream("POST", f"{url}/v1/chat/completions", json=LONG) as answer:
            assert answer.status_code == 200
            self.endpoint = answer.headers["x-headrace-endpoint"]
            async for data in answer.aiter_bytes():
                self.events += decoder.feed(data)
                self.started.set()


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the engine's child process by /proc")
async def test_sigkill_of_an_engine_loses_only_its_streams_and_new_requests_go_to_the_other(
    own_service: Service,
) -> None:
    victim = own_service.engines[0]
    assert victim.address is not None
    cores = children_of(victim.process.pid)
    streams = [Stream() for _ in range(NUM_STREAMS)]

    async with httpx.AsyncClient(timeout=60) as client, asyncio.TaskGroup() as tasks:
        for stream in streams:
            tasks.create_task(stream.run(client, own_service.url))
        for stream in streams:
            await stream.started.wait()
        victim.process.send_signal(signal.SIGKILL)
        url = f"{own_service.url}/v1/chat/completions"
        answers = [await client.post(url, json=SHORT) for _ in range(8)]

    lost = [stream for stream in streams if stream.endpoint == victim.address.url]
    kept = [stream for stream in streams if stream.endpoint != victim.address.url]
    assert [len(lost), len(kept)] == [NUM_STREAMS // 2, NUM_STREAMS // 2]
    for stream in lost:
        error = msgspec.json.decode(stream.events[-1])["error"]
        assert victim.address.url in error["message"]
        assert DONE_DATA not in stream.events
    assert all(stream.events[-1] == DONE_DATA for stream in kept)
    assert [answer.status_code for answer in answers] == [200] * 8
    assert {answer.headers["x-headrace-endpoint"] for answer in answers} == {kept[0].endpoint}

    deadline = time.monotonic() + 10
    while any(is_running(core) for core in cores) and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    assert not any(is_running(core) for core in cores), "the killed server's engine core lives on"
    assert len(cores) == 1
