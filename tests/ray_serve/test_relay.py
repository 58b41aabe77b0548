"""What comes through Ray Serve's proxy reaches the gateway and back as it was."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headrace.ray_serve.relay import Relay
from headrace.testing.fake_upstream import FakeUpstream, answers, streams

pytestmark = pytest.mark.integration


@asynccontextmanager
async def relaying(upstream: FakeUpstream) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an application that does as Ray Serve does with its ingress."""
    relay = Relay(upstream.url)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        response: Response = await relay.answer(Request(scope, receive))
        await response(scope, receive, send)

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://serve") as client:
        yield client
    await relay.aclose()


async def test_a_request_arrives_whole_and_its_answer_too() -> None:
    async with FakeUpstream() as upstream, relaying(upstream) as client:
        answer = await client.post(
            "/v1/chat/completions?a=1%2F2", json={"model": "demo"}, headers={"x-session-id": "s", "connection": "close"}
        )

    (request,) = upstream.received
    assert (request.target, request.json(), request.header("x-session-id")) == (
        "/v1/chat/completions?a=1%2F2",
        {"model": "demo"},
        "s",
    )
    assert request.header("connection") != "close"
    assert answer.json()["choices"][0]["message"]["content"] == "Hello."


async def test_an_errors_status_and_headers_come_back() -> None:
    upstream = FakeUpstream(behaviour=answers(429, headers=["retry-after: 3"]))
    async with upstream, relaying(upstream) as client:
        answer = await client.post("/v1/chat/completions", json={})

    assert (answer.status_code, answer.headers["retry-after"]) == (429, "3")


async def test_a_stream_comes_piece_by_piece() -> None:
    gate = asyncio.Semaphore(0)
    first = asyncio.Event()
    pieces: list[bytes] = []
    async with FakeUpstream(behaviour=streams(["a", "b"], gate=gate)) as upstream:
        relay = Relay(upstream.url)
        sent = asyncio.Queue[dict[str, object]]()
        scope: Scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/chat/completions",
            "query_string": b"",
            "headers": [],
            "server": ("serve", 80),
            "scheme": "http",
            "http_version": "1.1",
            "root_path": "",
        }
        received = [{"type": "http.request", "body": b"{}", "more_body": False}]

        async def receive() -> dict[str, object]:
            if received:
                return received.pop()
            await asyncio.Event().wait()
            raise AssertionError

        async def send(message: dict[str, object]) -> None:
            await sent.put(message)

        async def serve() -> None:
            response = await relay.answer(Request(scope, receive))
            await response(scope, receive, send)

        async with asyncio.timeout(20), asyncio.TaskGroup() as group:
            group.create_task(serve())
            assert (await sent.get())["status"] == 200
            gate.release()
            pieces.append(bytes((await sent.get())["body"]))  # type: ignore[call-overload]
            first.set()
            gate.release()
            while message := await sent.get():
                pieces.append(bytes(message["body"]))  # type: ignore[call-overload]
                if not message.get("more_body"):
                    break
        await relay.aclose()

    assert json.loads(pieces[0].removeprefix(b"data: "))["choices"][0]["delta"]["content"] == "a"
    assert b"".join(pieces).endswith(b"data: [DONE]\n\n")


async def test_a_gateway_that_is_gone_is_a_502_in_openais_form() -> None:
    async with FakeUpstream() as upstream:
        pass
    async with relaying(upstream) as client:
        answer = await client.get("/v1/models")

    assert answer.status_code == 502
    assert "cannot be reached" in answer.json()["error"]["message"]
