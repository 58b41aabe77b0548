"""Answers that are right, though written in ways that few endpoints use, and requests that are no POST."""

import gzip
import json

import pytest

from headrace.testing.fake_upstream import DONE, FakeUpstream, answers, chunk_event, completes, head, sends
from tests.gateway.support import chat_request, exchange, raw_client, running_gateway

pytestmark = pytest.mark.integration

BODY = b'{"ok":true}'
JSON = "content-type: application/json"
RIGHT = {
    "HTTP/1.0 with a length": [b"HTTP/1.0 200 OK\r\ncontent-length: 11\r\n\r\n" + BODY],
    "HTTP/1.0 to the end of the connection": [b"HTTP/1.0 200 OK\r\n\r\n", BODY[:4], BODY[4:]],
    "HTTP/1.1 to the end of the connection": [head(200, [JSON, "connection: close"]), BODY],
    "no reason phrase": [b"HTTP/1.1 200 \r\ncontent-length: 11\r\n\r\n" + BODY],
    "continue before it": [b"HTTP/1.1 100 Continue\r\n\r\n", head(200, ["content-length: 11"]) + BODY],
    "hints before it": [b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" + head(200, ["content-length: 11"]), BODY],
    "chunks with extensions": [head(200, ["transfer-encoding: chunked"]), b"b;x=y\r\n" + BODY + b"\r\n0\r\n\r\n"],
    "chunks with trailers": [head(200, ["transfer-encoding: chunked"]), b"b\r\n" + BODY + b"\r\n0\r\nx-t: 1\r\n\r\n"],
    "a byte at a time": [bytes([byte]) for byte in head(200, ["content-length: 11"]) + BODY],
    "names in capitals": [b"HTTP/1.1 200 OK\r\nCONTENT-LENGTH: 11\r\n\r\n" + BODY],
}


@pytest.mark.parametrize("pieces", RIGHT.values(), ids=RIGHT.keys())
async def test_an_unusual_answer_is_relayed_whole(pieces: list[bytes]) -> None:
    async with FakeUpstream(behaviour=sends(*pieces)) as upstream, running_gateway(upstream) as gateway:
        answer = await exchange(gateway, chat_request())

    assert (answer.status, answer.body, answer.is_complete) == (200, BODY, True)
    assert answer.header("x-t") is None
    assert answer.header("link") is None


async def test_an_answer_without_a_body_has_none() -> None:
    async with (
        FakeUpstream(behaviour=sends(head(204, []), closes=False)) as upstream,
        running_gateway(upstream) as gateway,
        raw_client(gateway) as client,
    ):
        for _ in range(2):
            await client.send(chat_request())
            answer = await client.read_head()
            assert (answer.status, answer.header("transfer-encoding"), answer.header("content-length")) == (
                204,
                None,
                None,
            )


@pytest.mark.parametrize("content_type", ["application/json", "text/event-stream"])
async def test_a_compressed_answer_is_relayed_as_it_is(content_type: str) -> None:
    plain = BODY if content_type == "application/json" else chunk_event("a") + DONE
    packed = gzip.compress(plain)
    behaviour = answers(200, headers=["content-encoding: gzip"], body=packed, content_type=content_type)
    async with FakeUpstream(behaviour=behaviour) as upstream, running_gateway(upstream) as gateway:
        answer = await exchange(gateway, chat_request())

    assert (answer.header("content-encoding"), answer.body) == ("gzip", packed)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_is_the_clients_to_follow(status: int) -> None:
    async with FakeUpstream() as elsewhere:
        location = f"{elsewhere.url}/v1/chat/completions"
        async with (
            FakeUpstream(behaviour=answers(status, headers=[f"location: {location}"])) as upstream,
            running_gateway(upstream) as gateway,
        ):
            answer = await exchange(gateway, chat_request())

        assert (answer.status, answer.header("location")) == (status, location)
        assert elsewhere.num_connections == 0


async def test_urls_in_a_request_are_never_followed() -> None:
    async with FakeUpstream() as elsewhere, FakeUpstream(behaviour=completes("x")) as upstream:
        image = {"type": "image_url", "image_url": {"url": f"{elsewhere.url}/cat.png"}}
        body = json.dumps({"model": "demo", "messages": [{"role": "user", "content": [image]}]}).encode()
        names = ("x-forwarded-host", "x-original-url", "x-rewrite-url", "referer")
        fields = "".join(f"{name}: {elsewhere.url}\r\n" for name in names)
        async with running_gateway(upstream) as gateway:
            answer = await exchange(gateway, chat_request(body, extra=fields))

        assert (answer.status, elsewhere.num_connections, len(upstream.received)) == (200, 0, 1)
    assert upstream.received[0].body == body


@pytest.mark.parametrize("path", ["/health", "/v1/models"])
async def test_head_says_what_get_would_without_the_body(path: str) -> None:
    async with FakeUpstream() as upstream, running_gateway(upstream) as gateway, raw_client(gateway) as client:
        await client.send(f"GET {path} HTTP/1.1\r\nHost: g\r\n\r\n".encode())
        full = await client.read_answer()
        await client.send(f"HEAD {path} HTTP/1.1\r\nHost: g\r\n\r\nGET {path} HTTP/1.1\r\nHost: g\r\n\r\n".encode())
        short = await client.read_head()
        after = await client.read_answer()

    assert (short.status, short.header("content-length")) == (200, full.header("content-length"))
    assert (after.status, after.body) == (200, full.body)


async def test_trace_context_and_request_ids_go_through() -> None:
    traced = {
        "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "tracestate": "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE",
        "baggage": "tenant=mill",
        "x-request-id": "r-1",
    }
    extra = "".join(f"{name}: {value}\r\n" for name, value in traced.items())
    async with FakeUpstream() as upstream, running_gateway(upstream) as gateway:
        answer = await exchange(gateway, chat_request(extra=extra))

    (received,) = upstream.received
    assert received.header("traceparent")[:35] == traced["traceparent"][:35]
    assert {name: received.header(name) for name in ("tracestate", "baggage", "x-request-id")} == {
        name: traced[name] for name in ("tracestate", "baggage", "x-request-id")
    }
    assert answer.header("x-request-id") == "r-1"


async def test_a_request_without_an_id_gets_one_that_endpoint_and_client_share() -> None:
    async with FakeUpstream() as upstream, running_gateway(upstream) as gateway:
        answers_ = [await exchange(gateway, chat_request()) for _ in range(2)]

    ids = [received.header("x-request-id") for received in upstream.received]
    assert [answer.header("x-request-id") for answer in answers_] == ids
    assert len(set(ids)) == 2


@pytest.mark.parametrize("value", ["x" * 300, "a b\tc", "é", '"><script>', ""])
async def test_an_id_that_could_do_harm_in_a_log_is_replaced(value: str) -> None:
    request = chat_request(extra="X-Request-Id: \x00\r\n").replace(b"\x00", value.encode("latin-1"))
    async with FakeUpstream() as upstream, running_gateway(upstream) as gateway:
        answer = await exchange(gateway, request)

    given = answer.header("x-request-id")
    assert given is not None
    assert given != value
    assert given.isalnum()
    assert upstream.received[0].header("x-request-id") == given
