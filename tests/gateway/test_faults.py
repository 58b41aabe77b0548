"""Every way in which an endpoint can fail, and what the client is told."""

import asyncio
import json
import time

import pytest

import openai
from headrace.testing.fake_upstream import (
    Behaviour,
    FakeUpstream,
    answers,
    chunk_event,
    completes,
    dies_after,
    dies_at_once,
    hangs,
    head,
    sends,
    streams,
)
from tests.gateway.support import chat_body, chat_request, exchange, num_in_flight, raw_client, running_gateway

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("behaviour", [dies_at_once, answers(503), answers(503, headers=["retry-after: 9"])])
async def test_a_failure_before_the_first_byte_goes_to_another_endpoint(behaviour: Behaviour) -> None:
    async with (
        FakeUpstream(behaviour=behaviour) as bad,
        FakeUpstream(behaviour=completes("good")) as good,
        running_gateway(bad, good) as gateway,
    ):
        answer = await exchange(gateway, chat_request())

        assert num_in_flight(gateway) == 0
    assert answer.status == 200
    assert answer.header("x-headrace-endpoint") == good.url
    assert f"retry 1 after {bad.url} failed" in (answer.header("x-headrace-reason") or "")
    assert (len(bad.received), len(good.received)) == (1, 1)


async def test_a_refused_connection_goes_to_another_endpoint() -> None:
    async with FakeUpstream() as bad, FakeUpstream() as good, running_gateway(bad, good) as gateway:
        await bad.stop()
        answer = await exchange(gateway, chat_request())

    assert (answer.status, answer.header("x-headrace-endpoint")) == (200, good.url)


async def test_attempts_are_bounded() -> None:
    async with (
        FakeUpstream(behaviour=dies_at_once) as one,
        FakeUpstream(behaviour=dies_at_once) as two,
        FakeUpstream(behaviour=dies_at_once) as three,
        running_gateway(one, two, three, max_attempts=2) as gateway,
    ):
        answer = await exchange(gateway, chat_request())

    assert answer.status == 503
    assert sum(len(upstream.received) for upstream in (one, two, three)) == 2


async def test_when_all_are_down_the_client_hears_why() -> None:
    async with FakeUpstream() as upstream, running_gateway(upstream) as gateway:
        await upstream.stop()
        first = await exchange(gateway, chat_request())
        await gateway._health.probe(gateway.fleet.endpoints[0])
        await gateway._health.probe(gateway.fleet.endpoints[0])
        second = await exchange(gateway, chat_request())
        health = await exchange(gateway, b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")

    for answer in (first, second):
        assert (answer.status, answer.error["code"]) == (503, "no_endpoint_available")
        assert "'demo'" in str(answer.error["message"])
        assert upstream.url in str(answer.error["message"])
        assert answer.header("retry-after") == "1"
    assert health.status == 503


async def test_the_last_503_is_relayed_as_it_is() -> None:
    async with (
        FakeUpstream(behaviour=answers(503, headers=["retry-after: 9"])) as upstream,
        running_gateway(upstream) as gateway,
    ):
        answer = await exchange(gateway, chat_request())

    assert (answer.status, answer.header("retry-after")) == (503, "9")
    assert answer.body == b'{"error":{"message":"no"}}'


async def test_a_429_is_the_clients_business() -> None:
    async with (
        FakeUpstream(behaviour=answers(429, headers=["retry-after: 7"])) as bad,
        FakeUpstream() as other,
        running_gateway(bad, other) as gateway,
    ):
        answer = await exchange(gateway, chat_request())

    assert (answer.status, answer.header("retry-after"), other.received) == (429, "7", [])


@pytest.mark.parametrize(
    ("behaviour", "status", "code"),
    [
        (sends(b"\x00\x01garbage\r\n\r\n"), 502, "upstream_protocol_error"),
        (sends(b"HTTP/1.1 200 OK\r\nContent-Le"), 502, "upstream_protocol_error"),
        (sends(head(200, ["content-length: 3", "transfer-encoding: chunked"])), 502, "upstream_protocol_error"),
        (sends(b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000), 502, "upstream_protocol_error"),
        (hangs, 504, "upstream_timeout"),
    ],
)
async def test_no_answer_that_is_one_is_told_once_and_not_tried_again(
    behaviour: Behaviour, status: int, code: str
) -> None:
    async with (
        FakeUpstream(behaviour=behaviour) as bad,
        FakeUpstream() as other,
        running_gateway(bad, other, first_byte_timeout_s=0.2) as gateway,
    ):
        answer = await exchange(gateway, chat_request())

        assert num_in_flight(gateway) == 0
    assert (answer.status, answer.error["code"], other.received) == (status, code, [])


@pytest.mark.parametrize("half", [b"", b'data: {"choices": [{"del', b"data: x\n"])
async def test_a_stream_that_dies_ends_with_an_error_event(half: bytes) -> None:
    async with (
        FakeUpstream(behaviour=dies_after("a", "b", also=half)) as bad,
        FakeUpstream() as other,
        running_gateway(bad, other) as gateway,
    ):
        answer = await exchange(gateway, chat_request())

    relayed = chunk_event("a") + chunk_event("b")
    assert answer.is_complete
    assert answer.body.startswith(relayed + b"data: ")
    error = json.loads(answer.body.removeprefix(relayed).removeprefix(b"data: "))["error"]
    assert error["code"] == "upstream_protocol_error"
    assert b"[DONE]" not in answer.body
    assert other.received == []


async def test_the_official_client_raises_for_a_stream_that_dies() -> None:
    async with (
        FakeUpstream(behaviour=dies_after("a", also=b"data: {")) as upstream,
        running_gateway(upstream) as gateway,
        openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key="k", max_retries=0) as client,
    ):
        stream = await client.chat.completions.create(model="demo", messages=[], stream=True)
        with pytest.raises(openai.APIError, match="closed before its answer was complete"):
            [chunk async for chunk in stream]


async def test_a_stream_that_falls_silent_ends_with_an_error_event() -> None:
    async def behaviour(exchange_: object) -> None:
        await exchange_.start_chunked()
        await exchange_.chunk(chunk_event("a"))
        await exchange_.closed.wait()

    async with FakeUpstream(behaviour=behaviour) as upstream, running_gateway(upstream, idle_timeout_s=0.2) as gateway:
        answer = await exchange(gateway, chat_request())
        await upstream.wait_for(lambda: upstream.num_running == 0)

    assert answer.is_complete
    assert b'"code":"upstream_timeout"' in answer.body


@pytest.mark.parametrize(
    "pieces",
    [
        [head(200, ["content-type: application/json", "content-length: 100"]), b'{"half":'],
        [head(200, ["content-type: application/json", "transfer-encoding: chunked"]), b"5\r\n12345\r\n"],
        [head(200, ["content-type: application/json", "transfer-encoding: chunked"]), b"5\r\n12345\r\nnonsense\r\n"],
    ],
)
async def test_a_body_that_is_no_stream_breaks_off_and_never_looks_complete(pieces: list[bytes]) -> None:
    async with FakeUpstream(behaviour=sends(*pieces)) as upstream, running_gateway(upstream) as gateway:
        answer = await exchange(gateway, chat_request())

    assert answer.status == 200
    assert not answer.is_complete


async def test_an_http10_client_sees_a_reset_when_a_body_breaks_off() -> None:
    pieces = [
        head(200, ["content-type: application/json", "transfer-encoding: chunked"]),
        b"5\r\n12345\r\nnonsense\r\n",
    ]
    body = chat_body()
    request = f"POST /v1/chat/completions HTTP/1.0\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    async with FakeUpstream(behaviour=sends(*pieces)) as upstream, running_gateway(upstream) as gateway:
        with pytest.raises(ConnectionResetError):
            await exchange(gateway, request)


async def test_bytes_after_an_answer_spoil_its_connection_only() -> None:
    body = b'{"ok":true}'
    spoilt = sends(head(200, [f"content-length: {len(body)}"]) + body + b"HTTP/1.1 200 OK\r\n\r\nevil", closes=False)
    async with FakeUpstream(behaviour=spoilt) as upstream, running_gateway(upstream) as gateway:
        first = await exchange(gateway, chat_request())
        upstream.behaviour = completes("next")
        second = await exchange(gateway, chat_request())

    assert first.body == body
    assert b"next" in second.body
    assert upstream.received[0].connection != upstream.received[1].connection


async def test_a_stale_connection_is_replaced_without_the_client_seeing_it() -> None:
    closes_when_asked_again = completes("first")

    async def behaviour(exchange_: object) -> None:
        same = [one for one in upstream.received if one.connection == exchange_.request.connection]
        if len(same) > 1:
            exchange_.die()
        else:
            await closes_when_asked_again(exchange_)

    async with FakeUpstream(behaviour=behaviour) as upstream, running_gateway(upstream) as gateway:
        statuses = [(await exchange(gateway, chat_request())).status for _ in range(2)]

        assert gateway.fleet.endpoints[0].load.statistics().num_failed == 0
    assert statuses == [200, 200]
    assert len(upstream.received) == 3


async def test_an_endpoint_that_closes_after_each_answer_is_served_as_well() -> None:
    async with (
        FakeUpstream(behaviour=answers(200, headers=["connection: close"])) as upstream,
        running_gateway(upstream) as gateway,
        raw_client(gateway) as client,
    ):
        for _ in range(3):
            await client.send(chat_request())
            assert (await client.read_answer()).status == 200

    assert len({received.connection for received in upstream.received}) == 3


async def test_failures_in_a_row_keep_requests_away_until_the_pause_is_over() -> None:
    async with (
        FakeUpstream(behaviour=dies_at_once) as bad,
        FakeUpstream(behaviour=streams(["a"])) as good,
        running_gateway(bad, good, breaker_failures=2, breaker_pause_s=3600) as gateway,
    ):
        for _ in range(10):
            assert (await exchange(gateway, chat_request())).status == 200

    assert (len(bad.received), len(good.received)) == (2, 10)


async def test_a_stream_that_tries_a_broken_endpoint_lets_others_in_as_soon_as_it_begins() -> None:
    gate = asyncio.Semaphore(1)
    async with (
        FakeUpstream(behaviour=dies_at_once) as upstream,
        running_gateway(upstream, breaker_failures=1, breaker_pause_s=0.001) as gateway,
    ):
        assert (await exchange(gateway, chat_request())).status == 503
        upstream.behaviour = streams(["a", "b"], gate=gate)
        while not gateway.fleet.candidates("demo", now=time.monotonic()):
            await asyncio.sleep(0)
        async with raw_client(gateway) as trial:
            await trial.send(chat_request())
            await trial.read_head()
            upstream.behaviour = completes("x")
            answer = await exchange(gateway, chat_request())

    assert answer.status == 200
