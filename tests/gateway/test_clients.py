"""Clients that leave, stall, say too much or too little; and the gateway going down under them."""

import asyncio
import gc
import random
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from headrace.gateway.app import Gateway
from headrace.gateway.deadlines import Deadlines
from headrace.gateway.http.connection import ClientConnection, ConnectionLimits
from headrace.gateway.http.message import Request
from headrace.gateway.http.request_reader import SizeLimits
from headrace.gateway.http.response_writer import ResponseWriter
from headrace.gateway.http.server import HttpServer
from headrace.testing.fake_upstream import Exchange, FakeUpstream, chunk_event, completes, hangs, streams
from tests.gateway.support import (
    CHAT,
    chat_body,
    chat_request,
    exchange,
    num_in_flight,
    raw_client,
    running_gateway,
    settled,
)

pytestmark = pytest.mark.integration


LIMITS = ConnectionLimits(
    sizes=SizeLimits(max_head_bytes=4096, max_body_bytes=1 << 20),
    head_timeout_s=20,
    body_timeout_s=20,
    keepalive_timeout_s=20,
    write_timeout_s=20,
)


def connection_of(server: HttpServer) -> ClientConnection:
    (connection,) = server._connections
    return connection


def num_pooled(gateway: Gateway) -> int:
    return sum(endpoint.pool.statistics().num_open for endpoint in gateway.fleet.endpoints)


@pytest.mark.parametrize("leave", ["close", "reset"])
async def test_a_client_that_leaves_before_the_first_byte_stops_the_endpoint(leave: str) -> None:
    async with FakeUpstream(behaviour=hangs) as upstream, running_gateway(upstream) as gateway:
        async with raw_client(gateway) as client:
            await client.send(chat_request())
            await upstream.wait_for(lambda: upstream.num_running == 1)
            getattr(client, leave)()
            await upstream.wait_for(lambda: upstream.num_running == 0 and upstream.num_open == 0)
        await settled(gateway)

        assert (num_in_flight(gateway), num_pooled(gateway)) == (0, 0)
        assert gateway.fleet.endpoints[0].load.statistics().num_cancelled == 1


@pytest.mark.parametrize("leave", ["close", "reset"])
async def test_a_client_that_leaves_mid_stream_stops_the_endpoint(leave: str) -> None:
    gate = asyncio.Semaphore(1)
    async with (
        FakeUpstream(behaviour=streams(["a"] * 100, gate=gate)) as upstream,
        running_gateway(upstream) as gateway,
    ):
        async with raw_client(gateway) as client:
            await client.send(chat_request())
            await client.read_head()
            assert await client.read_chunk() == chunk_event("a")
            getattr(client, leave)()
            await upstream.wait_for(lambda: upstream.num_running == 0 and upstream.num_open == 0)
        await settled(gateway)

        assert (num_in_flight(gateway), num_pooled(gateway), gateway.slots.num_taken) == (0, 0, 0)


async def test_after_random_departures_every_reservation_is_back() -> None:
    gate = asyncio.Semaphore(0)
    choose = random.Random(7)
    behaviour = streams(["a"] * 3, gate=gate)

    async def client_life(gateway: Gateway) -> None:
        async with raw_client(gateway) as client:
            await client.send(chat_request())
            when = choose.randrange(4)
            if when == 0:
                return
            await client.read_head()
            if when == 1:
                return
            await client.read_chunk()
            if when == 3:
                await client.read_chunk()

    async with (
        FakeUpstream(behaviour=behaviour) as one,
        FakeUpstream(behaviour=behaviour) as two,
        running_gateway(one, two) as gateway,
    ):
        async with asyncio.TaskGroup() as group:
            for _ in range(60):
                group.create_task(client_life(gateway))
            for _ in range(300):
                gate.release()
        await settled(gateway)

        statistics = [endpoint.load.statistics() for endpoint in gateway.fleet.endpoints]
        assert [one_.num_in_flight for one_ in statistics] == [0, 0]
        assert gateway.slots.num_taken == 0
        assert gateway.server.statistics().num_held_body_bytes == 0


async def test_a_slow_client_holds_the_endpoint_back_and_gets_everything() -> None:
    num_pieces, sent = 400, []
    piece = b"data: " + b"x" * 65_000 + b"\n\n"

    async def behaviour(exchange_: Exchange) -> None:
        await exchange_.start_chunked()
        for _ in range(num_pieces):
            await exchange_.chunk(piece)
            sent.append(len(piece))
        await exchange_.chunk(b"")

    async with (
        FakeUpstream(behaviour=behaviour) as upstream,
        running_gateway(upstream) as gateway,
        raw_client(gateway) as client,
    ):
        await client.send(chat_request())
        await client.read_head()
        (connection,) = gateway.server._connections
        while not connection._is_write_paused:
            await asyncio.sleep(0)
        last = -1
        while last != sum(sent):  # until the sockets' own buffers are full too
            last = sum(sent)
            await asyncio.sleep(0.05)
        held = connection._transport.get_write_buffer_size()
        num_sent_while_paused = len(sent)
        total = 0
        while chunk := await client.read_chunk():
            total += len(chunk)

    assert num_sent_while_paused < num_pieces
    assert held < 1 << 20
    assert total == num_pieces * len(piece)


@asynccontextmanager
async def unread_answer() -> AsyncIterator[tuple[HttpServer, asyncio.StreamReader]]:
    """A server whose one answer is more than the sockets hold, and its client, which has asked and reads nothing."""

    async def handler(_: Request, client: ResponseWriter) -> None:
        client.answer(status=200, headers=[], body=bytes(64 << 20))

    server = HttpServer(
        handler, limits=LIMITS, max_connections=1, max_held_body_bytes=1 << 20, deadlines=Deadlines(interval_s=60.0)
    )
    port = await server.start(host="127.0.0.1", port=0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"GET /first HTTP/1.1\r\nHost: g\r\nConnection: close\r\n\r\n")
        while not server._connections or not connection_of(server)._is_write_paused:
            await asyncio.sleep(0)
        yield server, reader
    finally:
        writer.transport.abort()
        await server.aclose()


async def test_a_client_that_reads_slowly_is_not_cut_at_its_deadline() -> None:
    async with unread_answer() as (server, reader):
        connection = connection_of(server)
        for _ in range(3):
            assert connection._unread is not None
            noted = connection._unread._num_waiting_bytes
            async with asyncio.timeout(20):
                while noted - connection._unread._num_waiting() < 1024:
                    await reader.read(1 << 16)
            connection.deadline_s = None
            connection.on_deadline()

            assert connection.deadline_s is not None

        async with asyncio.timeout(20):
            while await reader.read(1 << 20):
                pass


async def test_a_client_that_has_stopped_reading_is_cut_at_its_deadline() -> None:
    async with unread_answer() as (server, reader):
        connection = connection_of(server)
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        async with asyncio.timeout(20):
            while server._connections:
                connection.on_deadline()
                await asyncio.sleep(0)


async def test_a_connection_that_has_ended_is_freed_at_once() -> None:
    async with FakeUpstream() as upstream, running_gateway(upstream) as gateway:
        gc.collect()
        gc.disable()
        try:
            async with raw_client(gateway) as client:
                await client.send(chat_request())
                await client.read_answer()
                ended = weakref.ref(connection_of(gateway.server))
            async with asyncio.timeout(20):
                while ended() is not None:
                    await asyncio.sleep(0)
        finally:
            gc.enable()


async def test_a_request_in_two_parts_behind_an_answer_not_yet_read_arrives_whole() -> None:
    """Its first part comes while the answer is sent, its second while what was sent waits for the client to read."""
    num_bytes = 64 << 20  # more than the sockets hold
    targets: list[bytes] = []

    async def handler(request: Request, client: ResponseWriter) -> None:
        targets.append(request.target)
        is_first = len(targets) == 1
        while is_first and not connection_of(server)._backlog:
            await asyncio.sleep(0)
        client.answer(status=200, headers=[], body=bytes(num_bytes if is_first else 1))

    server = HttpServer(
        handler,
        limits=LIMITS,
        max_connections=1,
        max_held_body_bytes=1 << 20,
        deadlines=Deadlines(interval_s=1.0),
    )
    port = await server.start(host="127.0.0.1", port=0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"GET /first HTTP/1.1\r\nHost: g\r\n\r\n")
        while not targets:
            await asyncio.sleep(0)
        writer.write(b"GET /sec")
        while connection_of(server)._drained is None:
            await asyncio.sleep(0)
        writer.write(b"ond HTTP/1.1\r\nHost: g\r\n\r\n")
        while connection_of(server)._num_backlog_bytes < len(b"GET /second HTTP/1.1\r\nHost: g\r\n\r\n"):
            await asyncio.sleep(0)
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(num_bytes)
        head = await reader.readuntil(b"\r\n\r\n")
    finally:
        writer.transport.abort()
        await server.aclose()

    assert head.startswith(b"HTTP/1.1 200 ")
    assert targets == [b"/first", b"/second"]


async def test_a_pipelined_request_that_waits_to_be_told_to_continue_is_told_so() -> None:
    body = chat_body()
    waiting = f"POST {CHAT} HTTP/1.1\r\nHost: g\r\nContent-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n".encode()
    async with (
        FakeUpstream(behaviour=completes("x")) as upstream,
        running_gateway(upstream) as gateway,
        raw_client(gateway) as client,
    ):
        await client.send(chat_request() + waiting)
        first = await client.read_answer()
        told = await client.read_head()
        await client.send(body)
        second = await client.read_answer()

    assert [first.status, told.status, second.status] == [200, 100, 200]


async def test_a_client_that_reads_nothing_is_cut_and_its_endpoint_stopped() -> None:
    async def behaviour(exchange_: Exchange) -> None:
        await exchange_.start_chunked()
        while True:
            await exchange_.chunk(b"data: " + b"x" * 65_000 + b"\n\n")

    async with FakeUpstream(behaviour=behaviour) as upstream, running_gateway(upstream, write_timeout_s=0.2) as gateway:
        async with raw_client(gateway) as client:
            await client.send(chat_request())
            await client.read_head()
            await upstream.wait_for(lambda: upstream.num_open == 0)
            await settled(gateway)

        assert num_in_flight(gateway) == 0


@pytest.mark.parametrize(
    ("parts", "status"),
    [
        ([f"POST {CHAT} HTTP/1.1\r\nHost: a\r\nContent-Length: 2000\r\n\r\n".encode()], 413),
        ([b"GET /" + b"x" * 5000 + b" HTTP/1.1\r\n", b"Host: a\r\n\r\n"], 431),
        ([b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc"], 400),
        ([b"nonsense\r\n\r\n"], 400),
    ],
)
async def test_what_is_refused_gets_an_error_and_the_connection_is_closed(parts: list[bytes], status: int) -> None:
    async with (
        FakeUpstream() as upstream,
        running_gateway(upstream, max_body_bytes=1000, max_head_bytes=4096) as gateway,
        raw_client(gateway) as client,
    ):
        await client.send(*parts)
        answer = await client.read_answer()

        assert answer.status == status
        assert answer.error["message"]
        assert await client.is_closed_by_peer()
    assert upstream.received == []


@pytest.mark.parametrize("part", [b"POST /", chat_request()[:-5]])
async def test_a_request_that_does_not_arrive_in_time_is_refused(part: bytes) -> None:
    async with (
        FakeUpstream() as upstream,
        running_gateway(upstream, head_timeout_s=0.2, body_timeout_s=0.2) as gateway,
    ):
        answer = await exchange(gateway, part)

    assert (answer.status, answer.error["code"]) == (408, "request_timeout")


@pytest.mark.parametrize("part", [b"POST /", chat_request()[:-5]])
async def test_a_part_that_came_with_the_request_before_has_its_deadline_too(part: bytes) -> None:
    async with (
        FakeUpstream() as upstream,
        running_gateway(upstream, head_timeout_s=0.2, body_timeout_s=0.2) as gateway,
        raw_client(gateway) as client,
    ):
        await client.send(chat_request() + part)
        first, second = await client.read_answer(), await client.read_answer()

    assert (first.status, second.status) == (200, 408)


@pytest.mark.parametrize("num_requests", [0, 1])
async def test_an_idle_connection_is_closed_without_a_word(num_requests: int) -> None:
    async with (
        FakeUpstream() as upstream,
        running_gateway(upstream, keepalive_timeout_s=0.2, head_timeout_s=0.2) as gateway,
        raw_client(gateway) as client,
    ):
        for _ in range(num_requests):
            await client.send(chat_request())
            await client.read_answer()

        assert await client.is_closed_by_peer()


async def test_connections_over_the_limit_are_answered_with_503() -> None:
    async with (
        FakeUpstream() as upstream,
        running_gateway(upstream, max_connections=1) as gateway,
        raw_client(gateway) as first,
    ):
        await first.send(chat_request())
        assert (await first.read_answer()).status == 200
        answer = await exchange(gateway)

    assert (answer.status, answer.header("retry-after")) == (503, "1")


async def test_requests_over_the_limit_are_answered_with_503() -> None:
    async with (
        FakeUpstream(behaviour=hangs) as upstream,
        running_gateway(upstream, max_concurrent_requests=1) as gateway,
        raw_client(gateway) as first,
    ):
        await first.send(chat_request())
        await upstream.wait_for(lambda: upstream.num_running == 1)
        answer = await exchange(gateway, chat_request())

    assert (answer.status, answer.error["code"]) == (503, "overloaded")


async def test_draining_finishes_what_is_under_way_and_accepts_nothing_new() -> None:
    gate = asyncio.Semaphore(1)
    async with (
        FakeUpstream(behaviour=streams(["a", "b"], gate=gate)) as upstream,
        running_gateway(upstream) as gateway,
        raw_client(gateway) as busy,
        raw_client(gateway) as idle,
    ):
        await busy.send(chat_request())
        await busy.read_head()
        first = await busy.read_chunk()
        async with asyncio.TaskGroup() as group:
            draining = group.create_task(gateway.drain())
            assert await idle.is_closed_by_peer()
            with pytest.raises(ConnectionRefusedError):
                await exchange(gateway, chat_request())
            gate.release()
            rest = [await busy.read_chunk() for _ in range(3)]
            assert await busy.is_closed_by_peer()

    assert draining.result()
    assert (first, rest[0], rest[2]) == (chunk_event("a"), chunk_event("b"), b"")


async def test_what_does_not_end_in_time_is_cut_by_the_drain() -> None:
    async with FakeUpstream(behaviour=hangs) as upstream:
        async with running_gateway(upstream, drain_timeout_s=0.1) as gateway, raw_client(gateway) as client:
            await client.send(chat_request())
            await upstream.wait_for(lambda: upstream.num_running == 1)
            assert not await gateway.drain()
            await gateway.aclose()

            assert await client.is_closed_by_peer()
        await upstream.wait_for(lambda: upstream.num_running == 0)

    assert num_in_flight(gateway) == 0


async def test_a_body_that_is_no_json_is_refused_and_the_connection_goes_on() -> None:
    async with (
        FakeUpstream(behaviour=completes("x")) as upstream,
        running_gateway(upstream) as gateway,
        raw_client(gateway) as client,
    ):
        await client.send(chat_request(b"{"))
        bad = await client.read_answer()
        await client.send(chat_request(chat_body()))
        good = await client.read_answer()

    assert (bad.status, good.status) == (400, 200)
