"""What an endpoint says is what its client gets, over real sockets."""

import asyncio
import json
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import openai
from headrace.testing.fake_upstream import (
    DONE,
    FakeUpstream,
    answers,
    chunk_event,
    completes,
    head,
    sends,
    streams,
    usage_event,
)
from tests.gateway.support import CHAT, chat_body, chat_request, exchange, num_in_flight, raw_client, running_gateway

pytestmark = pytest.mark.integration

STREAM = b"".join(
    [chunk_event("Grüß"), b": ping\n\n", chunk_event(" Gott"), usage_event(prompt_tokens=3, completion_tokens=2), DONE]
)


async def test_an_answer_is_relayed_with_status_headers_and_body() -> None:
    async with (
        FakeUpstream(behaviour=answers(418, headers=["x-own: 1", "set-cookie: a", "set-cookie: b"])) as upstream,
        running_gateway(upstream) as gateway,
    ):
        answer = await exchange(gateway, chat_request())

    assert answer.status == 418
    assert answer.body == b'{"error":{"message":"no"}}'
    assert [value for name, value in answer.headers if name in {"x-own", "set-cookie"}] == ["1", "a", "b"]


async def test_the_gateway_says_what_it_decided() -> None:
    async with FakeUpstream() as upstream, running_gateway(upstream) as gateway:
        answer = await exchange(gateway, chat_request(extra="X-Request-Id: mine\r\n"))

    assert answer.header("x-headrace-endpoint") == upstream.url
    assert answer.header("x-headrace-policy") == "prefix"
    assert answer.header("x-headrace-reason") == "only endpoint; tokens no_tokenizer"
    assert float(answer.header("x-headrace-overhead-ms") or "nan") >= 0
    assert answer.header("x-request-id") == "mine"


async def test_the_endpoint_gets_the_request_as_it_was() -> None:
    body = chat_body(stream=False, top_k=5)
    extra = "Authorization: Bearer k\r\nTraceparent: 00-a-b-01\r\nX-Forwarded-For: 9.9.9.9\r\n"
    async with FakeUpstream() as upstream, running_gateway(upstream) as gateway:
        await exchange(gateway, chat_request(body, extra=extra, path=CHAT + "?a=b"))

    (received,) = upstream.received
    assert (received.target, received.body) == (CHAT + "?a=b", body)
    assert received.header("authorization") == "Bearer k"
    assert received.header("traceparent") == "00-a-b-01"
    assert received.header("x-forwarded-for") == "9.9.9.9, 127.0.0.1"
    assert received.header("host") == upstream.url.removeprefix("http://")


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(1, len(STREAM) - 1), max_size=8, unique=True), is_chunked=st.booleans())
def test_for_any_chunks_of_the_endpoint_the_client_gets_the_same_bytes(cuts: list[int], is_chunked: bool) -> None:
    places = [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[start:end] for start, end in pairwise(places)]
    fields = ["content-type: text/event-stream", "transfer-encoding: chunked" if is_chunked else "connection: close"]
    framed = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces] + [b"0\r\n\r\n"] if is_chunked else pieces

    async def run() -> bytes:
        behaviour = sends(head(200, fields), *framed)
        async with FakeUpstream(behaviour=behaviour) as upstream, running_gateway(upstream) as gateway:
            return (await exchange(gateway, chat_request())).body

    assert asyncio.run(run()) == STREAM


@pytest.mark.parametrize("cut", [1, 20, 80, 130])
async def test_a_request_in_pieces_and_chunks_arrives_whole(cut: int) -> None:
    body = chat_body()
    data = f"POST {CHAT} HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n".encode()
    data += b"".join(b"%x\r\n%b\r\n" % (1, body[index : index + 1]) for index in range(len(body))) + b"0\r\n\r\n"
    async with FakeUpstream() as upstream, running_gateway(upstream) as gateway, raw_client(gateway) as client:
        await client.send(data[:cut], data[cut:])
        interim, answer = await client.read_head(), await client.read_answer()

    assert (interim.status, answer.status) == (100, 200)
    assert upstream.received[0].body == body


async def test_an_http10_client_gets_a_body_that_ends_with_the_connection() -> None:
    body = chat_body()
    request = f"POST {CHAT} HTTP/1.0\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    async with FakeUpstream(behaviour=streams(["a"])) as upstream, running_gateway(upstream) as gateway:
        answer = await exchange(gateway, request)

    assert answer.header("transfer-encoding") is None
    assert answer.body == chunk_event("a") + DONE


async def test_connections_are_kept_alive_on_both_sides() -> None:
    async with FakeUpstream() as upstream, running_gateway(upstream) as gateway, raw_client(gateway) as client:
        for _ in range(3):
            await client.send(chat_request())
            assert (await client.read_answer()).status == 200

    assert {received.connection for received in upstream.received} == {upstream.received[0].connection}


async def test_pipelined_requests_are_answered_in_order() -> None:
    async def echo(exchange_: object) -> None:
        await completes(str(exchange_.request.json()["n"]))(exchange_)

    async with (
        FakeUpstream(behaviour=echo) as upstream,
        running_gateway(upstream) as gateway,
        raw_client(gateway) as client,
    ):
        await client.send(b"".join(chat_request(chat_body(n=number)) for number in range(20)))
        answers_ = [await client.read_answer() for _ in range(20)]

    texts = [json.loads(answer.body)["choices"][0]["message"]["content"] for answer in answers_]
    assert texts == [str(number) for number in range(20)]


async def test_the_official_client_finds_a_model_whose_name_has_a_slash() -> None:
    async with (
        FakeUpstream(model="org/demo 7B") as upstream,
        running_gateway(upstream) as gateway,
        openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key="k", max_retries=0) as client,
    ):
        assert (await client.models.retrieve("org/demo 7B")).id == "org/demo 7B"
        plain = await exchange(gateway, b"GET /v1/models/org/demo%207B HTTP/1.1\r\nHost: g\r\n\r\n")

    assert plain.status == 200


async def test_the_official_client_streams() -> None:
    async with (
        FakeUpstream(behaviour=streams(["Hel", "lo"], prompt_tokens=3)) as upstream,
        running_gateway(upstream) as gateway,
        openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key="k", max_retries=0) as client,
    ):
        assert [model.id async for model in client.models.list()] == ["demo"]
        stream = await client.chat.completions.create(
            model="demo", messages=[{"role": "user", "content": "Hi"}], stream=True
        )
        deltas = [chunk.choices[0].delta.content async for chunk in stream if chunk.choices]
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            await client.chat.completions.create(model="nope", messages=[])

    assert deltas == ["Hel", "lo"]
    assert upstream.received[0].header("authorization") == "Bearer k"


async def test_two_hundred_streams_at_once_each_get_their_own() -> None:
    gate = asyncio.Semaphore(0)

    async def behaviour(exchange_: object) -> None:
        await streams([f"{exchange_.request.json()['n']}-{index}" for index in range(3)], gate=gate)(exchange_)

    async with (
        FakeUpstream(behaviour=behaviour) as one,
        FakeUpstream(behaviour=behaviour) as two,
        running_gateway(one, two) as gateway,
        asyncio.TaskGroup() as group,
    ):
        tasks = [group.create_task(exchange(gateway, chat_request(chat_body(n=n)))) for n in range(200)]
        await one.wait_for(lambda: one.num_running == 100)
        await two.wait_for(lambda: two.num_running == 100)
        assert num_in_flight(gateway) == 200
        for _ in range(600):
            gate.release()

    for number, task in enumerate(tasks):
        assert task.result().body == b"".join(chunk_event(f"{number}-{index}") for index in range(3)) + DONE
    assert num_in_flight(gateway) == 0


async def test_a_usage_that_agrees_is_exact_and_one_that_does_not_is_drift() -> None:
    body = json.dumps({"model": "demo", "prompt": [5, 6, 7]}).encode()
    async with (
        FakeUpstream(behaviour=completes("x", prompt_tokens=3)) as upstream,
        running_gateway(upstream) as gateway,
    ):
        answer = await exchange(gateway, chat_request(body, path="/v1/completions"))
        upstream.behaviour = streams(["x"], prompt_tokens=4)
        await exchange(gateway, chat_request(body, path="/v1/completions"))

        (parity,) = gateway.parity.statistics()
    assert answer.header("x-headrace-prompt-tokens") == "3"
    assert parity.reasons == {"equal": 1, "predicted_fewer": 1}


async def test_what_cannot_fit_the_context_is_refused_before_any_endpoint() -> None:
    body = json.dumps({"model": "demo", "prompt": [1] * 10, "max_tokens": 7}).encode()
    async with FakeUpstream(max_model_len=16) as upstream, running_gateway(upstream) as gateway:
        answer = await exchange(gateway, chat_request(body, path="/v1/completions"))

    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
    assert "16 tokens" in str(answer.error["message"])
    assert "17 tokens (10 in the prompt, 7 in the completion)" in str(answer.error["message"])
    assert upstream.received == []
