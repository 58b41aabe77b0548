"""Requests that could be read in two ways, or name a place that is not theirs, reach no endpoint."""

import pytest

from headrace.testing.fake_upstream import FakeUpstream, completes, head, sends
from tests.gateway.support import CHAT, chat_body, chat_request, exchange, raw_client, running_gateway

pytestmark = pytest.mark.integration

BODY = chat_body()
HIDDEN = chat_request(chat_body(model="hidden"))


def post(*fields: str, body: bytes = BODY) -> bytes:
    return "\r\n".join([f"POST {CHAT} HTTP/1.1", "Host: g", *fields, "", ""]).encode("latin-1") + body


LENGTH = f"Content-Length: {len(BODY)}"
AMBIGUOUS = {
    "length and chunks": post(LENGTH, "Transfer-Encoding: chunked"),
    "chunks and length": post("Transfer-Encoding: chunked", "Content-Length: 0", body=b"0\r\n\r\n" + HIDDEN),
    "two lengths that differ": post(LENGTH, "Content-Length: 0"),
    "two lengths that agree": post(LENGTH, LENGTH),
    "a list of lengths": post(f"Content-Length: {len(BODY)}, {len(BODY)}"),
    "a length with a sign": post(f"Content-Length: +{len(BODY)}"),
    "a length in hexadecimal": post("Content-Length: 0x10"),
    "a length over every limit": post("Content-Length: 18446744073709551617"),
    "a folded field": post(LENGTH, "X: a\r\n Transfer-Encoding: chunked"),
    "a space before the colon": post("Transfer-Encoding : chunked", body=b"0\r\n\r\n" + HIDDEN),
    "a tab in the name": post("Transfer-Encoding\t: chunked", body=b"0\r\n\r\n" + HIDDEN),
    "a coding that is not ours": post("Transfer-Encoding: xchunked", body=b"0\r\n\r\n" + HIDDEN),
    "two codings": post("Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n" + HIDDEN),
    "a chunk size with a sign": post("Transfer-Encoding: chunked", body=b"-1\r\n\r\n" + HIDDEN),
    "a chunk size with a prefix": post("Transfer-Encoding: chunked", body=b"0x0\r\n\r\n" + HIDDEN),
    "a chunk size over every limit": post("Transfer-Encoding: chunked", body=b"ffffffffffffffffff\r\n" + HIDDEN),
    "a chunk longer than its size": post("Transfer-Encoding: chunked", body=b"1\r\nabc\r\n0\r\n\r\n" + HIDDEN),
    "bare line feeds": post(LENGTH, "X: a\nTransfer-Encoding: chunked"),
    "a bare carriage return": post(LENGTH, "X: a\rTransfer-Encoding: chunked"),
    "a null": post(LENGTH, "X: a\x00b"),
    "two hosts": post(LENGTH, "Host: other"),
    "no host": post(LENGTH).replace(b"Host: g\r\n", b""),
    "a space in the target": post(LENGTH).replace(b"/v1/chat/completions HTTP", b"/v1/chat/completions HTTP/1.1 HTTP"),
    "HTTP/1.0 with chunks": post("Transfer-Encoding: chunked", body=b"0\r\n\r\n").replace(b"HTTP/1.1", b"HTTP/1.0"),
}


@pytest.mark.parametrize("request_", AMBIGUOUS.values(), ids=AMBIGUOUS.keys())
async def test_an_ambiguous_request_is_refused_and_nothing_after_it_is_read(request_: bytes) -> None:
    async with FakeUpstream() as upstream, running_gateway(upstream) as gateway, raw_client(gateway) as client:
        await client.send(request_)
        answer = await client.read_answer()

        assert 400 <= answer.status < 500
        assert await client.is_closed_by_peer()
    assert upstream.received == []


TARGETS = [
    f"/v1/..{CHAT}",
    f"/health/..{CHAT}",
    f"{CHAT}/..",
    f"/.{CHAT}",
    f"/{CHAT}",
    f"{CHAT}/",
    "/v1/chat//completions",
    "/v1/chat%2fcompletions",
    "/v1/%63hat/completions",
    f"{CHAT}%00",
    f"{CHAT};x",
    "/V1/chat/completions",
    r"\v1\chat\completions",
    "/v1/models/../chat/completions",
    "/admin/endpoints",
    "/metrics",
    "*",
]


@pytest.mark.parametrize("target", TARGETS)
async def test_only_the_paths_that_are_served_reach_an_endpoint(target: str) -> None:
    request = chat_request(BODY).replace(CHAT.encode(), target.encode(), 1)
    async with FakeUpstream() as upstream, running_gateway(upstream) as gateway:
        answer = await exchange(gateway, request)

    assert 400 <= answer.status < 500
    assert upstream.received == []


async def test_an_absolute_url_names_the_route_and_not_the_place() -> None:
    async with FakeUpstream() as evil, FakeUpstream(behaviour=completes("x")) as upstream:
        request = chat_request(BODY).replace(CHAT.encode(), f"{evil.url}{CHAT}?q=1".encode(), 1)
        async with running_gateway(upstream) as gateway:
            answer = await exchange(gateway, request)

        assert (answer.status, evil.num_connections) == (200, 0)
    (received,) = upstream.received
    assert (received.target, received.header("host")) == (f"{CHAT}?q=1", upstream.url.removeprefix("http://"))


async def test_what_follows_the_question_mark_of_an_absolute_url_is_no_path() -> None:
    request = chat_request(BODY).replace(CHAT.encode(), f"http://gateway?x={CHAT}".encode(), 1)
    async with FakeUpstream() as upstream, running_gateway(upstream) as gateway:
        answer = await exchange(gateway, request)

    assert (answer.status, upstream.received) == (404, [])


async def test_a_client_cannot_frame_the_endpoints_request_through_connection_fields() -> None:
    fields = "Connection: keep-alive, content-length, host, x-forwarded-for, x-mine\r\nX-Mine: 1\r\n"
    async with FakeUpstream() as upstream, running_gateway(upstream) as gateway:
        answer = await exchange(gateway, chat_request(BODY, extra=fields))

    (received,) = upstream.received
    names = [name for name, _ in received.headers]
    assert (answer.status, received.body, received.header("x-forwarded-for")) == (200, BODY, "127.0.0.1")
    assert (names.count("content-length"), names.count("host"), "x-mine" in names) == (1, 1, False)


SPLITTING = {
    "a folded field": [b"HTTP/1.1 200 OK\r\nx: a\r\n b\r\ncontent-length: 0\r\n\r\n"],
    "a bare carriage return": [b"HTTP/1.1 200 OK\r\nx: a\rset-cookie: b\r\ncontent-length: 0\r\n\r\n"],
    "a null": [b"HTTP/1.1 200 OK\r\nx: a\x00b\r\ncontent-length: 0\r\n\r\n"],
    "a length with a sign": [head(200, ["content-length: +2"]) + b"ok"],
    "a space before the colon": [b"HTTP/1.1 200 OK\r\ncontent-length : 2\r\n\r\nok"],
    "a reason with a line": [b"HTTP/1.1 200 OK\nset-cookie: b\r\ncontent-length: 0\r\n\r\n"],
    "a coding that nobody asked for": [head(200, ["transfer-encoding: gzip, chunked"]), b"2\r\nok\r\n0\r\n\r\n"],
    "switching protocols": [head(101, ["upgrade: h2c", "connection: upgrade"])],
}


@pytest.mark.parametrize("pieces", SPLITTING.values(), ids=SPLITTING.keys())
async def test_an_endpoint_cannot_write_the_gateways_own_head(pieces: list[bytes]) -> None:
    async with FakeUpstream(behaviour=sends(*pieces)) as upstream, running_gateway(upstream) as gateway:
        answer = await exchange(gateway, chat_request())

    assert (answer.status, answer.header("set-cookie")) == (502, None)
    assert answer.error["code"] == "upstream_protocol_error"
