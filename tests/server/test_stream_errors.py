"""What a stream's client sees when the answer cannot be finished: an error event and no [DONE]."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from headrace.openai.sse import DONE_DATA, SseDecoder
from headrace.testing.fake_engine import FakeEngine

pytestmark = pytest.mark.integration


async def events(response: Any) -> AsyncIterator[Any]:
    decoder = SseDecoder()
    async for chunk in response.aiter_bytes():
        for event in decoder.feed(chunk):
            yield event if event == DONE_DATA else msgspec.json.decode(event)


@pytest.mark.parametrize("prompt", ["hello there", ["hello there", "and you"]])
async def test_the_death_of_the_core_ends_a_stream_with_an_error_event(
    server: Any, engine: FakeEngine, prompt: object
) -> None:
    engine.hold(after_tokens=4)
    body = {"prompt": prompt, "stream": True}
    async with server.http.stream("POST", "/v1/completions", json=body) as response:
        stream = events(response)
        first = await anext(stream)
        engine.die("the core was killed")
        rest = [event async for event in stream]
    assert first["choices"][0]["text"]
    assert rest[-1] == {
        "error": {"message": "the core was killed", "type": "engine_error", "param": None, "code": "engine_dead"}
    }
    assert DONE_DATA not in rest
    assert engine.num_live == 0


async def test_the_death_of_the_core_fails_a_whole_answer_with_503(server: Any, engine: FakeEngine) -> None:
    engine.hold(after_tokens=2)
    async with asyncio.TaskGroup() as group:
        request = group.create_task(server.http.post("/v1/completions", json={"prompt": "hello"}))
        await engine.until(lambda: engine.num_live == 1)
        engine.die()
    assert request.result().status_code == 503
    assert request.result().json()["error"]["code"] == "engine_dead"


async def test_an_abort_by_somebody_else_is_an_error_and_not_a_short_answer(server: Any, engine: FakeEngine) -> None:
    engine.hold(after_tokens=4)
    async with asyncio.TaskGroup() as group:
        whole = group.create_task(server.http.post("/v1/completions", json={"prompt": "hello there"}))
        async with server.http.stream("POST", "/v1/completions", json={"prompt": "hello", "stream": True}) as response:
            stream = events(response)
            await anext(stream)
            await engine.until(lambda: engine.num_live == 2)
            await engine.abort(server.live.engine_ids())
            rest = [event async for event in stream]
    assert rest[-1]["error"]["code"] == "aborted"
    assert DONE_DATA not in rest
    assert (whole.result().status_code, whole.result().json()["error"]["code"]) == (503, "aborted")


async def test_a_defect_within_a_stream_is_an_error_event_too(
    serve: Any, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.hold(after_tokens=2)
    body = {"prompt": "hello", "stream": True}
    async with serve(engine) as server, server.http.stream("POST", "/v1/completions", json=body) as response:
        stream = events(response)
        await anext(stream)
        engine._next_step = None  # type: ignore[assignment,method-assign]  # the next token raises TypeError
        engine.release()
        rest = [event async for event in stream]
    assert rest[-1]["error"]["type"] == "internal_server_error"
    assert "NoneType" not in rest[-1]["error"]["message"]
    assert "TypeError" in caplog.text
