"""An endpoint answers before it has read the whole request, as servers do that refuse a body for its size."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from headrace.gateway.deadlines import Deadlines
from headrace.gateway.upstream.address import parse_address
from headrace.gateway.upstream.connection import UpstreamTimeouts
from headrace.gateway.upstream.fetch import post
from headrace.gateway.upstream.pool import UpstreamPool
from headrace.testing.fake_upstream import head

pytestmark = pytest.mark.integration

BODY = bytes(32 << 20)  # more than the sockets hold
TIMEOUTS = UpstreamTimeouts(connect_s=20, first_byte_s=20, idle_s=20)


@asynccontextmanager
async def reads_heads_only(answer: bytes) -> AsyncIterator[str]:
    """The URL of a server that answers each head, and reads no more until its peer has gone."""
    over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await over.wait()
        writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        over.set()
        server.close()


@pytest.mark.parametrize("fields", [[], ["connection: close"]], ids=["kept alive", "closing"])
async def test_its_connection_is_closed_at_once_and_not_used_again(fields: list[str]) -> None:
    answer = head(413, ["content-length: 2", *fields]) + b"no"
    deadlines = Deadlines(interval_s=1.0)
    async with reads_heads_only(answer) as url, asyncio.timeout(20):
        pool = UpstreamPool(parse_address(url), timeouts=TIMEOUTS, max_idle=4, idle_timeout_s=20, deadlines=deadlines)
        answered = [await post(pool, "/x", BODY, max_answer_bytes=100) for _ in range(2)]
        while pool.statistics().num_open:
            await asyncio.sleep(0.005)

    assert [(one.status, one.body) for one in answered] == [(413, b"no")] * 2
    deadlines.close()
