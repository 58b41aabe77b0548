"""What every route has in common: bodies, routes, methods, keys, request ids, limits."""

import asyncio
import contextlib
from typing import Any

import msgspec
import pytest

from headrace.server.settings import ServerSettings
from headrace.testing.fake_engine import FakeEngine

pytestmark = pytest.mark.integration

JSON = {"content-type": "application/json"}


async def raw(server: Any, request: bytes) -> bytes:
    """Everything the server sends for `request` until it closes."""
    reader, writer = await asyncio.open_connection(server.host, server.port)
    writer.write(request)
    try:
        async with asyncio.timeout(10):
            return await reader.read()
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("content", "headers", "status", "words"),
    [
        (b"", JSON, 400, "not valid JSON"),
        (b"{nope", JSON, 400, "not valid JSON"),
        (b'{"model":"\xff"}', JSON, 400, "not valid UTF-8"),
        (b'{"model":"\\ud800"}', JSON, 400, "JSON"),
        (b"[" * 100_000, JSON, 400, "object"),
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", JSON, 400, "nested too deeply"),
        (b'{"prompt":"x"}', {"content-type": "text/plain"}, 400, "Content-Type is 'text/plain'"),
        (b"prompt=x", {"content-type": "application/x-www-form-urlencoded"}, 400, "Content-Type"),
        (b"\x1f\x8b\x08\0", {**JSON, "content-encoding": "gzip"}, 400, "Content-Encoding is 'gzip'"),
        (b'"' + b"x" * 2000 + b'"', JSON, 413, "larger than 1000 bytes"),
    ],
)
async def test_a_body_that_is_no_request_gets_openais_error(
    engine: FakeEngine, serve: Any, content: bytes, headers: dict[str, str], status: int, words: str
) -> None:
    limit = 1000 if status == 413 else 1 << 20
    async with serve(engine, ServerSettings(max_body_bytes=limit)) as server:
        for route in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
            response = await server.http.post(route, content=content, headers=headers)
            assert response.status_code == status
            assert words in response.json()["error"]["message"]


async def test_the_limit_holds_for_a_body_of_unknown_length(engine: FakeEngine, serve: Any) -> None:
    async def pieces() -> Any:
        for _ in range(20):
            yield b"x" * 100

    async with serve(engine, ServerSettings(max_body_bytes=1000)) as server:
        response = await server.http.post("/v1/completions", content=pieces(), headers=JSON)
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "payload_too_large"


async def test_a_body_that_does_not_arrive_is_given_up(engine: FakeEngine, serve: Any) -> None:
    async with serve(engine, ServerSettings(body_timeout_s=0.05)) as server:
        answer = await raw(
            server,
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 50\r\n\r\n{",
        )
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"request_timeout" in answer


async def test_a_body_without_a_content_type_is_taken_for_json(server: Any) -> None:
    response = await server.http.post("/v1/completions", content=b'{"prompt":"x"}')
    assert response.status_code == 200


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/chat", "/v1/models/", "/v1/images/edits", "/nothing"])
async def test_an_unknown_route_is_404_in_openais_form(server: Any, path: str) -> None:
    response = await server.http.post(path, json={})
    assert response.status_code in (404, 405)
    if response.status_code == 404:
        assert response.json()["error"]["code"] == "unknown_url"


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/v1/chat/completions"), ("DELETE", "/tokenize"), ("POST", "/v1/models"), ("PUT", "/health")],
)
async def test_a_wrong_method_is_405_and_names_the_right_one(server: Any, method: str, path: str) -> None:
    response = await server.http.request(method, path)
    assert response.status_code == 405
    assert response.json()["error"]["code"] == "method_not_allowed"
    assert response.headers["allow"]


async def test_a_request_id_is_given_back_cleaned_and_cut(server: Any) -> None:
    given = await server.http.get("/health", headers={"x-request-id": "abc-123"})
    dirty = await server.http.get("/health", headers={"x-request-id": "a b;c" + "x" * 500})
    none = await server.http.get("/nothing")
    assert given.headers["x-request-id"] == "abc-123"
    assert dirty.headers["x-request-id"] == ("abc" + "x" * 500)[:128]
    assert len(none.headers["x-request-id"]) == 32


async def test_anthropics_client_finds_the_request_id_where_it_looks(server: Any) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
    sent = {"x-request-id": "one-of-mine"}
    for given, status in ((body, 200), ({}, 400)):
        response = await server.http.post("/v1/messages", json=given, headers=sent)
        assert (response.status_code, response.headers["request-id"]) == (status, "one-of-mine")
        assert response.headers["x-request-id"] == "one-of-mine"
    assert "request-id" not in (await server.http.get("/health", headers=sent)).headers


async def test_with_keys_only_their_owners_are_served(engine: FakeEngine, serve: Any) -> None:
    async with serve(engine, ServerSettings(api_key=("first", "second"))) as server:

        async def status(path: str, authorization: str | None) -> int:
            headers = {} if authorization is None else {"authorization": authorization}
            response: int = (await server.http.get(path, headers=headers)).status_code
            return response

        for path in ("/v1/models", "/tokenize", "/nothing"):
            for wrong in (None, "Bearer", "Bearer third", "Bearer firstsecond", "Basic first", "first"):
                assert await status(path, wrong) == 401, (path, wrong)
        assert await status("/v1/models", "Bearer second") == 200
        assert await status("/v1/models", "bearer first") == 200
        assert [await status(path, None) for path in ("/health", "/version", "/metrics")] == [200, 200, 200]
        response = await server.http.get("/v1/models")
        assert response.json()["error"]["type"] == "authentication_error"
        assert response.headers["www-authenticate"] == "Bearer"


async def test_more_requests_than_the_limit_are_told_to_come_back(engine: FakeEngine, serve: Any) -> None:
    async with serve(engine, ServerSettings(max_concurrent_requests=2)) as server:
        engine.hold()
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(server.http.post("/v1/completions", json={"prompt": "x"})) for _ in range(2)]
            await engine.until(lambda: engine.num_live == 2)
            refused = await server.http.post("/v1/completions", json={"prompt": "x"})
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert refused.json()["error"]["code"] == "overloaded"
            assert (await server.http.get("/health")).status_code == 200
            engine.release()
        assert [task.result().status_code for task in running] == [200, 200]
        assert server.live.statistics().num_requests == 0


async def test_a_head_without_end_is_refused(server: Any) -> None:
    answer = b""
    with contextlib.suppress(ConnectionResetError):  # the rest of the head was on its way when the server closed
        answer = await raw(server, b"GET /health HTTP/1.1\r\nx-long: " + b"x" * (1 << 20))
    assert answer == b"" or answer.startswith(b"HTTP/1.1 431")
    assert (await server.http.get("/health")).status_code == 200


async def test_what_is_not_http_is_refused(server: Any) -> None:
    assert (await raw(server, b"\x16\x03\x01 hello\r\n\r\n")).startswith(b"HTTP/1.1 400")


async def test_requests_follow_each_other_on_one_connection(server: Any) -> None:
    body = msgspec.json.encode({"prompt": "abc"})
    request = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n%s\r\n%s"
    first = request % (len(body), b"", body)
    last = request % (len(body), b"connection: close\r\n", body)
    answer = await raw(server, first + last)
    assert answer.count(b"HTTP/1.1 200 OK") == 2
    assert answer.count(b'"text":"abc"') == 2


async def test_a_defect_is_500_in_openais_form_and_says_nothing_of_its_cause(
    engine: FakeEngine, serve: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(prompt: object) -> list[int]:
        raise ZeroDivisionError("a secret")

    engine._answer = broken
    async with serve(engine) as server:
        response = await server.http.post("/v1/completions", json={"prompt": "x"})
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "internal_server_error"
    assert "secret" not in response.text
    assert "a secret" in caplog.text
