"""Streams that tell their client they were taken before the engine has anything to say."""

import asyncio
from typing import Any

import pytest

from headrace.errors import EngineDeadError
from headrace.server.early_head import EarlyHead
from headrace.server.intake import ClientGoneError
from headrace.testing.fake_engine import FakeEngine

RESPONSE = ("/v1/responses", {"input": "hello", "stream": True})
MESSAGE = ("/v1/messages", {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 64, "stream": True})


class Beginning:
    """Counts how often it was written, and takes as long over it as the test wants."""

    def __init__(self, *, error: Exception | None = None) -> None:
        self.num_begun = 0
        self.num_ended = 0
        self.has_begun = asyncio.Event()
        self.may_end = asyncio.Event()
        self._error = error

    async def write(self) -> None:
        self.num_begun += 1
        self.has_begun.set()
        await self.may_end.wait()
        if self._error is not None:
            raise self._error
        self.num_ended += 1


async def test_a_stream_that_has_something_to_say_in_time_begins_with_that() -> None:
    beginning = Beginning()
    async with EarlyHead(beginning.write, after_s=3600) as head:
        await head.settle()
    assert beginning.num_begun == 0


async def test_a_late_one_begins_once_and_goes_on_after_that() -> None:
    beginning = Beginning()
    async with EarlyHead(beginning.write, after_s=0) as head:
        await beginning.has_begun.wait()
        asyncio.get_running_loop().call_soon(beginning.may_end.set)
        await head.settle()
        assert beginning.num_ended == 1
        await head.settle()
    assert (beginning.num_begun, beginning.num_ended) == (1, 1)


async def test_an_error_of_the_stream_comes_after_a_whole_beginning() -> None:
    beginning = Beginning()

    async def stream() -> None:
        async with EarlyHead(beginning.write, after_s=0):
            await beginning.has_begun.wait()
            asyncio.get_running_loop().call_soon(beginning.may_end.set)
            raise EngineDeadError("no more")

    with pytest.raises(EngineDeadError):
        await stream()
    assert beginning.num_ended == 1


async def test_a_cancelled_stream_waits_for_nothing() -> None:
    beginning = Beginning()

    async def stream() -> None:
        async with EarlyHead(beginning.write, after_s=0):
            await asyncio.Event().wait()

    async with asyncio.TaskGroup() as group:
        task = group.create_task(stream())
        await beginning.has_begun.wait()
        task.cancel()
    assert (beginning.num_begun, beginning.num_ended) == (1, 0)


async def test_a_client_that_leaves_meanwhile_is_no_error_of_the_beginning() -> None:
    beginning = Beginning(error=ClientGoneError("it left"))
    beginning.may_end.set()
    async with EarlyHead(beginning.write, after_s=0) as head:
        await beginning.has_begun.wait()
        await head.settle()


@pytest.mark.integration
@pytest.mark.parametrize(
    ("route", "body", "name", "last"),
    [(*RESPONSE, "response.created", "response.completed"), (*MESSAGE, "message_start", "message_stop")],
)
async def test_a_stream_begins_while_its_first_token_is_awaited(
    server: Any, engine: FakeEngine, route: str, body: Any, name: str, last: str
) -> None:
    engine.hold()
    async with server.http.stream("POST", route, json=body) as response:
        lines = response.aiter_lines()
        assert await anext(lines) == f"event: {name}"
        assert engine.num_live == 1
        engine.release()
        names = [line.removeprefix("event: ") async for line in lines if line.startswith("event: ")]
    assert names.count(name) == 0, "once is enough"
    assert names[-1] == last


@pytest.mark.integration
@pytest.mark.parametrize(("route", "body", "last"), [(*RESPONSE, "response.failed"), (*MESSAGE, "error")])
async def test_what_fails_after_that_is_an_event(
    server: Any, engine: FakeEngine, route: str, body: Any, last: str
) -> None:
    engine.hold()
    async with server.http.stream("POST", route, json=body) as response:
        lines = response.aiter_lines()
        await anext(lines)
        engine.die()
        names = [line.removeprefix("event: ") async for line in lines if line.startswith("event: ")]
    assert names[-1] == last


@pytest.mark.integration
@pytest.mark.parametrize(("route", "body"), [RESPONSE, MESSAGE])
async def test_what_is_refused_at_once_still_has_its_status(
    server: Any, engine: FakeEngine, route: str, body: Any
) -> None:
    engine.die()
    response = await server.http.post(route, json=body)
    assert response.status_code == 503
    assert response.headers["content-type"] == "application/json"


@pytest.mark.integration
@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/completions"])
async def test_openais_older_streams_begin_with_their_first_token(server: Any, engine: FakeEngine, route: str) -> None:
    """Whoever reads them takes the first chunk for it, to measure how long that took."""
    engine.hold()
    body = {"prompt": "hello", "messages": [{"role": "user", "content": "hello"}], "stream": True}
    request = asyncio.get_running_loop().create_task(server.http.post(route, json=body))
    await engine.until(lambda: engine.num_live == 1)
    engine.die()
    assert (await request).status_code == 503
