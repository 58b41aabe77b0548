"""Clients that send too slowly, too much or for ever, and clients that do not read: each is bounded and forgotten."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from headrace.server import protocol
from headrace.server.settings import ServerSettings
from headrace.testing.fake_engine import FakeEngine

pytestmark = pytest.mark.integration

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@contextlib.asynccontextmanager
async def connected(server: Any) -> AsyncIterator[Connection]:
    reader, writer = await asyncio.open_connection(server.host, server.port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def completion(prompt: str, **fields: object) -> bytes:
    """One request, ready for the socket."""
    body = msgspec.json.encode({"prompt": prompt, **fields})
    return b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)


async def until_closed(reader: asyncio.StreamReader) -> bytes:
    """Everything that came before the server closed the connection."""
    pieces = []
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(20):
            while piece := await reader.read(1 << 16):
                pieces.append(piece)
    return b"".join(pieces)


@pytest.mark.parametrize("sent", [b"", b"GET /health HTT", b"GET /health HTTP/1.1\r\nx-a: b\r\n"])
async def test_a_head_that_does_not_arrive_is_given_up(engine: FakeEngine, serve: Any, sent: bytes) -> None:
    async with serve(engine, ServerSettings(head_timeout_s=0.1)) as server, connected(server) as (reader, writer):
        writer.write(sent)
        assert await until_closed(reader) == b""


async def test_a_head_that_comes_a_byte_at_a_time_is_given_up_all_the_same(engine: FakeEngine, serve: Any) -> None:
    async with serve(engine, ServerSettings(head_timeout_s=0.3)) as server, connected(server) as (reader, writer):
        closed = asyncio.create_task(until_closed(reader))
        writer.write(b"GET /health HTTP/1.1\r\nx-long: ")
        while not closed.done():
            writer.write(b"x")
            await asyncio.wait({closed}, timeout=0.01)
        assert await closed == b""


async def test_the_second_head_on_a_connection_has_a_deadline_too(engine: FakeEngine, serve: Any) -> None:
    async with serve(engine, ServerSettings(head_timeout_s=0.1)) as server, connected(server) as (reader, writer):
        writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\nGET /hea")
        assert (await until_closed(reader)).count(b"HTTP/1.1") == 1


async def test_a_body_that_waits_behind_a_running_answer_is_not_late(
    engine: FakeEngine, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "_LATE_BODY_GRACE_S", 0.0)
    engine.hold(after_tokens=1)
    second = completion("b" * 400_000)
    async with serve(engine, ServerSettings(body_timeout_s=0.1)) as server, connected(server) as (reader, writer):
        writer.write(completion("ab", stream=True) + second[:300_000])
        await reader.readuntil(b"data: ")
        await asyncio.sleep(0.3)  # the time is what is tested
        engine.release()
        await asyncio.wait_for(reader.readuntil(b"[DONE]"), timeout=5)


async def test_a_settable_bound_holds_for_heads(engine: FakeEngine, serve: Any) -> None:
    async with serve(engine, ServerSettings(max_head_bytes=1000)) as server, connected(server) as (reader, writer):
        writer.write(b"GET /health HTTP/1.1\r\nx-long: " + b"x" * 2000)
        answer = await until_closed(reader)
    assert answer.startswith(b"HTTP/1.1 431")
    assert msgspec.json.decode(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "header_too_large"


async def test_what_is_sent_together_with_a_head_is_not_taken_for_it(engine: FakeEngine, serve: Any) -> None:
    requests = completion("ab" * 300, max_tokens=1) + b"GET /health HTTP/1.1\r\n"
    async with serve(engine, ServerSettings(max_head_bytes=300)) as server, connected(server) as (reader, writer):
        writer.write(requests)
        await asyncio.wait_for(reader.readuntil(b'"text":"a"'), timeout=5)
        writer.write(b"connection: close\r\n\r\n")
        assert b"HTTP/1.1 200" in await until_closed(reader)


async def test_a_body_without_end_is_cut_though_it_was_refused_long_ago(
    engine: FakeEngine, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "_LATE_BODY_GRACE_S", 0.0)
    settings = ServerSettings(max_body_bytes=1000, body_timeout_s=0.1)
    async with serve(engine, settings) as server, connected(server) as (reader, writer):
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        closed = asyncio.create_task(until_closed(reader))
        while not closed.done():
            writer.write(b"3e8\r\n" + b"x" * 1000 + b"\r\n")
            await asyncio.wait({closed}, timeout=0.02)
        assert (await closed).startswith(b"HTTP/1.1 413")


async def test_what_is_not_http_is_refused_in_openais_form(server: Any) -> None:
    async with connected(server) as (reader, writer):
        writer.write(b"\x16\x03\x01 hello\r\n\r\n")
        answer = await until_closed(reader)
    assert answer.startswith(b"HTTP/1.1 400")
    assert msgspec.json.decode(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "invalid_http"


@pytest.mark.parametrize(
    "head",
    [
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: -5\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 5x\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"GET /health HTTP/9.9\r\n\r\n",
        b"G\x00T /health HTTP/1.1\r\n\r\n",
    ],
)
async def test_a_head_that_two_servers_could_read_differently_starts_nothing(
    server: Any, engine: FakeEngine, head: bytes
) -> None:
    async with connected(server) as (reader, writer):
        writer.write(head)
        answer = await until_closed(reader)
    assert answer.startswith(b"HTTP/1.1 400")
    assert engine.statistics().num_started == 0


_UPGRADE = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAAAAIAAAABAAMAAABkAAQB\r\n"
"""What Java's own client sends with its first request."""


@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize("piece_size", [1, 7, 1 << 16])
async def test_a_wish_for_http2_is_passed_over_and_the_body_read(
    server: Any, is_chunked: bool, piece_size: int
) -> None:
    body = msgspec.json.encode({"prompt": "abc", "max_tokens": 1, "echo": True})
    framing = b"content-length: %d\r\n\r\n%s" % (len(body), body)
    if is_chunked:
        halves = body[:5], body[5:]
        chunks = b"".join(b"%x\r\n%s\r\n" % (len(half), half) for half in halves)
        framing = b"transfer-encoding: chunked\r\n\r\n%s0\r\n\r\n" % chunks
    wishing = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n%s%s" % (_UPGRADE, framing)
    last = b"GET /health HTTP/1.1\r\nhost: x\r\n%sconnection: close\r\n\r\n" % _UPGRADE
    async with connected(server) as (reader, writer):
        sent = wishing + wishing + completion("def", max_tokens=1, echo=True) + last
        for begin in range(0, len(sent), piece_size):
            writer.write(sent[begin : begin + piece_size])
            await writer.drain()
        answers = await until_closed(reader)
    assert answers.count(b"HTTP/1.1 200 OK") == answers.count(b"HTTP/1.1 ") == 4
    assert answers.count(b'"text":"abc') == 2
    assert answers.count(b'"text":"def') == 1


async def test_one_connection_more_than_allowed_is_refused(engine: FakeEngine, serve: Any) -> None:
    async with serve(engine, ServerSettings(max_connections=2)) as server:
        async with connected(server) as (_, first), connected(server), connected(server) as (reader, _):
            first.write(b"GET /health HTTP/1.1\r\n")
            answer = await until_closed(reader)
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"retry-after: 1" in answer
        assert b"2 connections are open" in answer


async def test_a_whole_answer_that_nobody_reads_does_not_hold_its_memory_for_ever(
    engine: FakeEngine, serve: Any
) -> None:
    """It is written at once, and only the socket waits."""
    async with serve(engine, ServerSettings(write_timeout_s=0.2)) as server, connected(server) as (reader, writer):
        writer.transport.pause_reading()
        writer.write(b"POST /tokenize HTTP/1.1\r\nhost: x\r\ncontent-length: 4000013\r\n\r\n")
        writer.write(b'{"prompt":"' + b"x" * 4_000_000 + b'"}')
        await asyncio.wait_for(server.http_server.until_no_connection(), timeout=20)
        writer.transport.resume_reading()
        answer = await until_closed(reader)
    assert answer.startswith(b"HTTP/1.1 200")
    assert not answer.endswith(b"}")


async def test_answers_that_nobody_reads_do_not_pile_up(engine: FakeEngine, serve: Any) -> None:
    """Whatever writes them: this is not an answer of a generation's."""
    async with serve(engine, ServerSettings(write_timeout_s=0.2)) as server:
        with contextlib.closing(socket.socket()) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect((server.host, server.port))
            client.sendall(b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n" * 120)
            client.setblocking(False)
            await asyncio.get_running_loop().sock_recv(client, 1)
            await asyncio.wait_for(server.http_server.until_no_connection(), timeout=20)


async def test_thousands_of_requests_sent_ahead_are_not_kept(server: Any, engine: FakeEngine) -> None:
    engine.hold()
    async with connected(server) as (reader, writer):
        writer.write(completion("first", stream=True) + b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n" * 3000)
        assert b"HTTP/1.1 200" not in await until_closed(reader)
    await engine.until(lambda: engine.num_live == 0)


async def test_garbage_behind_a_running_answer_does_not_get_into_it(server: Any, engine: FakeEngine) -> None:
    engine.hold(after_tokens=1)
    async with connected(server) as (reader, writer):
        writer.write(completion("abc", stream=True))
        await asyncio.wait_for(reader.readuntil(b"data: "), timeout=5)
        writer.write(b"\x00 this is no request\r\n\r\n")
        assert b"HTTP/1.1 400" not in await until_closed(reader)
    await engine.until(lambda: engine.num_live == 0)


async def test_leaving_ends_the_running_request_also_when_others_wait_behind_it(
    server: Any, engine: FakeEngine
) -> None:
    engine.hold(after_tokens=1)
    async with connected(server) as (reader, writer):
        writer.write(completion("first", stream=True) + completion("second"))
        await asyncio.wait_for(reader.readuntil(b"data: "), timeout=5)
    await engine.until(lambda: engine.num_live == 0)
    assert engine.statistics().num_started == 1


async def test_a_client_that_reads_slowly_gets_all(engine: FakeEngine, serve: Any) -> None:
    async with serve(engine, ServerSettings(write_timeout_s=0.3)) as server, connected(server) as (reader, writer):
        prompt = "x" * 600_000
        body = msgspec.json.encode({"prompt": prompt})
        head = b"POST /tokenize HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
        writer.write(head + body)
        num_bytes = 0
        while piece := await reader.read(20_000):
            num_bytes += len(piece)
            await asyncio.sleep(0.005)  # the slowness is what is tested
    assert num_bytes > 600_000 * 4  # 120 for each byte, with a comma
