"""Many streams of the real engine at once, and clients of it that stop reading. Slow: the core is a process of its own
and the demo model computes every token."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from headrace.engine import AsyncEngineArgs, AsyncLLMEngine
from headrace.server.settings import ServerSettings

pytestmark = [pytest.mark.integration, pytest.mark.slow]

DEMO = Path(__file__).parents[2] / "models" / "demo"
NUM_STREAMS = 500
NUM_PROMPTS = 50
NUM_TOKENS = 12
TIMEOUT_S = 240


@pytest.fixture
async def demo() -> AsyncIterator[AsyncLLMEngine]:
    arguments = AsyncEngineArgs(model=str(DEMO), served_model_name="demo", cpu_threads=1, disable_log_requests=True)
    async with AsyncLLMEngine.from_engine_args(arguments) as engine:
        yield engine


def prompt_of(number: int) -> list[int]:
    """Different from its first token on, and of different lengths, so that steps mix prompts and answers."""
    return [300 + 7 * number + place % (5 + number) for place in range(8 + 3 * (number % 17))]


async def streamed_ids(server: Any, prompt: list[int]) -> list[int]:
    """The answer of /inference/v1/generate, event by event."""
    body = {
        "token_ids": prompt,
        "sampling_params": {"temperature": 0, "max_tokens": NUM_TOKENS, "ignore_eos": True},
        "stream": True,
    }
    payload = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection(server.host, server.port)
    writer.write(b"POST /inference/v1/generate HTTP/1.1\r\nhost: x\r\nconnection: close\r\n")
    writer.write(b"content-length: %d\r\n\r\n%s" % (len(payload), payload))
    answer = (await reader.read()).decode()
    writer.close()
    assert answer.startswith("HTTP/1.1 200"), answer[:500]
    assert "data: [DONE]" in answer
    events = [json.loads(line[6:]) for line in answer.splitlines() if line.startswith("data: {")]
    return [token_id for event in events for choice in event["choices"] for token_id in choice["token_ids"]]


async def nothing_is_left(engine: AsyncLLMEngine, server: Any) -> None:
    """In the core, its front end and the server; the core tells its numbers after its steps."""
    async with asyncio.timeout(20):
        while (now := engine.statistics()).num_running or now.num_waiting or await engine.get_num_unfinished_requests():
            await asyncio.sleep(0.02)
    await engine.check_integrity()
    assert await engine.reset_prefix_cache(), "a request still holds blocks"
    live = server.live.statistics()
    assert (live.num_requests, live.num_generations) == (0, 0)


@pytest.mark.timeout(300)
async def test_five_hundred_streams_at_once_get_the_ids_that_each_gets_alone(demo: AsyncLLMEngine, serve: Any) -> None:
    prompts = [prompt_of(number) for number in range(NUM_PROMPTS)]
    async with serve(demo) as server, asyncio.timeout(TIMEOUT_S):
        alone = [await streamed_ids(server, prompt) for prompt in prompts]
        assert all(len(ids) == NUM_TOKENS for ids in alone)
        assert len({tuple(ids) for ids in alone}) > NUM_PROMPTS // 5, "equal answers prove nothing"
        assert await demo.reset_prefix_cache()
        async with asyncio.TaskGroup() as group:
            asked = [
                group.create_task(streamed_ids(server, prompts[number % NUM_PROMPTS])) for number in range(NUM_STREAMS)
            ]
        wrong = [number for number, task in enumerate(asked) if task.result() != alone[number % NUM_PROMPTS]]
        assert wrong == []
        await nothing_is_left(demo, server)


@pytest.mark.timeout(300)
async def test_five_hundred_streams_that_are_dropped_leave_nothing_in_the_core(
    demo: AsyncLLMEngine, serve: Any
) -> None:
    body = json.dumps({"prompt": "A story of a river", "max_tokens": 400, "stream": True, "ignore_eos": True}).encode()
    request = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
    async with serve(demo) as server, asyncio.timeout(TIMEOUT_S):
        connections = [await asyncio.open_connection(server.host, server.port) for _ in range(NUM_STREAMS)]
        for _, writer in connections:
            writer.write(request)
        first, _ = connections[0]
        await first.readuntil(b"data: ")
        while server.live.statistics().num_generations < NUM_STREAMS:
            await asyncio.sleep(0.02)
        for _, writer in connections:
            writer.transport.abort()
        await server.http_server.until_no_connection()
        await nothing_is_left(demo, server)


@pytest.mark.timeout(300)
async def test_a_reader_that_stops_is_given_up_and_holds_little_meanwhile(demo: AsyncLLMEngine, serve: Any) -> None:
    """Its answer has 10 MB: more than the kernel's buffers take."""
    settings = ServerSettings(port=0, write_timeout_s=2.0)
    body = json.dumps(
        {"prompt": "A story", "max_tokens": 400, "n": 16, "stream": True, "ignore_eos": True, "logprobs": 20}
    ).encode()
    request = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
    async with serve(demo, settings) as server, asyncio.timeout(TIMEOUT_S):
        with contextlib.closing(socket.socket()) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            await asyncio.to_thread(client.connect, (server.host, server.port))
            await asyncio.to_thread(client.sendall, request)
            while not server.live.statistics().num_generations:
                await asyncio.sleep(0.01)
            largest = 0
            while server.live.statistics().num_generations:
                buffered = [
                    connection.transport.get_write_buffer_size()
                    for connection in server.http_server.server_state.connections
                    if connection.transport is not None
                ]
                largest = max([largest, *buffered])
                await asyncio.sleep(0.01)
        assert 0 < largest < 1 << 20, "the answer waits in the server, but not much of it"
        await nothing_is_left(demo, server)
