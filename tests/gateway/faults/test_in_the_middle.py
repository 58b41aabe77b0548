"""An endpoint fails after its answer has begun: its client is told, and never takes a part for the whole."""

import json

import pytest

import openai
from headrace.gateway.admission.settings import AdmissionSettings
from headrace.testing.fake_upstream import (
    FakeUpstream,
    answers,
    chunk_event,
    completes,
    dies_after,
    head,
    sends,
)
from tests.gateway.support import chat_body, chat_request, exchange, raw_client, running_gateway

pytestmark = pytest.mark.integration

PRICED = AdmissionSettings(price=("demo=1/1/1",))


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


async def test_an_answer_that_was_held_for_its_cost_comes_from_another_endpoint_instead() -> None:
    cut = sends(head(200, ["content-type: application/json", "content-length: 100"]), b'{"half":')
    async with (
        FakeUpstream(behaviour=cut) as bad,
        FakeUpstream(behaviour=completes("whole")) as good,
        running_gateway(bad, good, policy="round_robin", admission=PRICED) as gateway,
    ):
        answer = await exchange(gateway, chat_request())

        assert [endpoint.load.statistics().num_failed for endpoint in gateway.fleet.endpoints] == [1, 0]
    assert (answer.status, answer.header("x-headrace-endpoint"), answer.is_complete) == (200, good.url, True)
    assert (answer.header("x-headrace-cost"), len(bad.received)) == ("0.000005", 1)


async def test_an_answer_that_was_held_for_its_cost_and_breaks_off_is_an_error_and_free() -> None:
    cut = sends(head(200, ["content-type: application/json", "content-length: 100"]), b'{"half":')
    async with FakeUpstream(behaviour=cut) as upstream, running_gateway(upstream, admission=PRICED) as gateway:
        answer = await exchange(gateway, chat_request())

    assert (answer.status, answer.is_complete, answer.error["code"]) == (502, True, "upstream_protocol_error")


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
