"""Many streams at once, and what a client's half-closed socket means to them."""

import asyncio
import re
from typing import Any

import pytest

from headrace.testing.fake_engine import FakeEngine

pytestmark = pytest.mark.integration

NUM_STREAMS = 500


async def streamed_text(server: Any, prompt: str) -> str:
    """The text of one stream that ended as it should. No client of the field, whose own work would be most of it."""
    reader, writer = await asyncio.open_connection(server.host, server.port)
    body = b'{"prompt":"%s","stream":true,"max_tokens":100}' % prompt.encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
    writer.write(head + body)
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"data: [DONE]" in answer
    return b"".join(re.findall(rb'"text":"([^"]*)"', answer)).decode()


async def test_five_hundred_streams_at_once_each_get_their_own_answer(server: Any, engine: FakeEngine) -> None:
    engine.hold(after_tokens=3)
    async with asyncio.TaskGroup() as group:
        prompts = [f"stream number {index}" for index in range(NUM_STREAMS)]
        texts = [group.create_task(streamed_text(server, prompt)) for prompt in prompts]
        await engine.until(lambda: engine.num_live == NUM_STREAMS, timeout_s=30)
        assert server.live.statistics().num_generations == NUM_STREAMS
        assert (await server.http.get("/health")).status_code == 200
        engine.release()
    assert [task.result() for task in texts] == prompts
    assert engine.statistics().num_aborted == 0


async def test_five_hundred_streams_that_are_dropped_at_once_leave_nothing(server: Any, engine: FakeEngine) -> None:
    engine.hold(after_tokens=1)
    body = b'{"prompt":"a story","stream":true}'
    request = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
    connections = [await asyncio.open_connection(server.host, server.port) for _ in range(NUM_STREAMS)]
    for _, writer in connections:
        writer.write(request)
    await engine.until(lambda: engine.num_live == NUM_STREAMS, timeout_s=30)
    for _, writer in connections:
        writer.transport.abort()
    await engine.until(lambda: engine.num_live == 0, timeout_s=30)
    await asyncio.wait_for(server.http_server.until_no_connection(), timeout=20)
    assert engine.statistics().num_aborted == NUM_STREAMS


async def test_closing_the_sending_side_within_a_body_starts_nothing(server: Any, engine: FakeEngine) -> None:
    reader, writer = await asyncio.open_connection(server.host, server.port)
    writer.write(b'POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\n{"prompt')
    writer.write_eof()
    assert await asyncio.wait_for(reader.read(), timeout=5) == b""
    writer.close()
    await asyncio.wait_for(server.http_server.until_no_connection(), timeout=5)
    assert engine.statistics().num_started == 0
