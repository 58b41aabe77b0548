"""A client that leaves, at any moment and in any way, leaves nothing running."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from headrace.server.settings import ServerSettings
from headrace.testing.fake_engine import FakeEngine

pytestmark = pytest.mark.integration

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]

CHAT = {"messages": [{"role": "user", "content": "tell me a long story"}]}
REQUESTS = [
    pytest.param("/v1/chat/completions", {**CHAT, "stream": True}, id="chat stream"),
    pytest.param("/v1/chat/completions", CHAT, id="chat whole"),
    pytest.param("/v1/completions", {"prompt": "a story", "stream": True}, id="completion stream"),
    pytest.param("/v1/completions", {"prompt": ["a story", "another"], "stream": True}, id="two prompts stream"),
    pytest.param("/v1/completions", {"prompt": ["a story", "another"]}, id="two prompts whole"),
]


@contextlib.asynccontextmanager
async def sent(
    server: Any, path: str, body: object
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection on which the request has been sent."""
    reader, writer = await asyncio.open_connection(server.host, server.port)
    content = msgspec.json.encode(body)
    writer.write(
        b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (path.encode(), len(content), content)
    )
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@pytest.mark.parametrize(("path", "body"), REQUESTS)
async def test_leaving_before_the_first_token_aborts(server: Any, engine: FakeEngine, path: str, body: Any) -> None:
    engine.hold()
    num_prompts = len(body["prompt"]) if isinstance(body.get("prompt"), list) else 1
    async with sent(server, path, body):
        await engine.until(lambda: engine.num_live == num_prompts)
    await engine.until(lambda: engine.num_live == 0)
    assert engine.statistics().num_aborted == num_prompts


@pytest.mark.parametrize(("path", "body"), REQUESTS)
async def test_leaving_after_some_tokens_aborts(server: Any, engine: FakeEngine, path: str, body: Any) -> None:
    engine.hold(after_tokens=3)
    num_prompts = len(body["prompt"]) if isinstance(body.get("prompt"), list) else 1
    async with sent(server, path, body) as (reader, _):
        await engine.until(lambda: engine.num_live == num_prompts)
        if body.get("stream"):
            await asyncio.wait_for(reader.readuntil(b"data: "), timeout=5)
    await engine.until(lambda: engine.num_live == 0)
    assert engine.statistics().num_aborted == num_prompts


async def test_a_reset_connection_aborts(server: Any, engine: FakeEngine) -> None:
    engine.hold(after_tokens=1)
    async with sent(server, "/v1/completions", {"prompt": "a story", "stream": True}) as (reader, writer):
        await asyncio.wait_for(reader.readuntil(b"data: "), timeout=5)
        writer.transport.abort()
    await engine.until(lambda: engine.num_live == 0)


async def test_a_half_closed_connection_counts_as_left(server: Any, engine: FakeEngine) -> None:
    engine.hold()
    async with sent(server, "/v1/completions", {"prompt": "a story", "stream": True}) as (reader, writer):
        await engine.until(lambda: engine.num_live == 1)
        writer.write_eof()
        await engine.until(lambda: engine.num_live == 0)
        assert await asyncio.wait_for(reader.read(), timeout=5) == b""


async def test_leaving_within_the_body_starts_nothing(server: Any, engine: FakeEngine) -> None:
    _, writer = await asyncio.open_connection(server.host, server.port)
    writer.write(b'POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\n{"prompt')
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    assert (await server.http.post("/v1/completions", json={"prompt": "x"})).status_code == 200
    assert engine.statistics().num_started == 1


async def test_others_go_on_when_one_leaves(server: Any, engine: FakeEngine) -> None:
    engine.hold(after_tokens=2)
    async with asyncio.TaskGroup() as group:
        staying = group.create_task(server.http.post("/v1/completions", json={"prompt": "still here"}))
        async with sent(server, "/v1/completions", {"prompt": "a story", "stream": True}):
            await engine.until(lambda: engine.num_live == 2)
        await engine.until(lambda: engine.num_live == 1)
        engine.release()
    assert staying.result().json()["choices"][0]["text"] == "still here"


async def test_a_client_that_reads_nothing_is_given_up(serve: Any) -> None:
    def endless(prompt: object) -> list[int]:
        return list(b"x" * 200_000)

    async with (
        FakeEngine(max_model_len=1 << 20, answer=endless) as engine,
        serve(engine, ServerSettings(write_timeout_s=0.2)) as server,
        sent(server, "/v1/completions", {"prompt": "a", "max_tokens": None, "stream": True}) as (_, writer),
    ):
        writer.transport.pause_reading()
        await engine.until(lambda: engine.num_live == 1)
        await engine.until(lambda: engine.num_live == 0, timeout_s=30)
        assert engine.statistics().num_aborted == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_leaving_is_counted_as_aborted(server: Any, engine: FakeEngine, stream: bool) -> None:
    engine.hold(after_tokens=2)
    async with sent(server, "/v1/completions", {"prompt": "a story", "stream": stream}) as (reader, _):
        await engine.until(lambda: engine.num_live == 1)
        if stream:
            await asyncio.wait_for(reader.readuntil(b"data: "), timeout=5)
    await engine.until(lambda: engine.num_live == 0)
    metrics = (await server.http.get("/metrics")).text
    expected = 'vllm:request_success_total{engine="0",finished_reason="abort",model_name="fake-model"} 1.0'
    assert expected in metrics
