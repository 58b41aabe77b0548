"""Joining the streams of one request's prompts."""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncGenerator

import pytest

from headrace.engine.outputs import CompletionOutput, RequestOutput
from headrace.errors import EngineGenerateError
from headrace.server.ready_outputs import ready_outputs


def output(text: str) -> RequestOutput:
    completion = CompletionOutput(index=0, text=text, token_ids=[0])
    return RequestOutput("r", None, [], [completion], finished=False)


class Source:
    """A stream of `num_outputs` outputs that knows how far it was read and whether it was closed."""

    def __init__(self, num_outputs: int, *, fails: bool = False, may_go_on: asyncio.Event | None = None) -> None:
        self.num_outputs = num_outputs
        self.fails = fails
        self.may_go_on = may_go_on
        self.num_made = 0
        self.is_closed = False

    async def stream(self) -> AsyncGenerator[RequestOutput, None]:
        try:
            for number in range(self.num_outputs):
                self.num_made += 1
                yield output(str(number))
            if self.may_go_on is not None:
                await self.may_go_on.wait()
            if self.fails:
                raise EngineGenerateError("this one fails")
        finally:
            self.is_closed = True


@pytest.mark.parametrize("lengths", [[3], [0], [2, 0, 5], [1, 1], [0, 0]])
async def test_every_output_comes_once_and_in_its_streams_order(lengths: list[int]) -> None:
    sources = [Source(length) for length in lengths]
    found: dict[int, list[str]] = defaultdict(list)
    async with contextlib.aclosing(ready_outputs([source.stream() for source in sources])) as batches:
        async for batch in batches:
            assert batch
            for index, one in batch:
                found[index].append(one.outputs[0].text)
    assert [found[index] for index in range(len(lengths))] == [list(map(str, range(length))) for length in lengths]


async def test_outputs_that_became_ready_while_the_consumer_was_busy_come_together() -> None:
    sources = [Source(3) for _ in range(4)]
    async with contextlib.aclosing(ready_outputs([source.stream() for source in sources])) as batches:
        await anext(batches)
        for _ in range(20):
            await asyncio.sleep(0)
        joined = await anext(batches)
    assert {index for index, _ in joined} == {0, 1, 2, 3}


async def test_a_consumer_that_takes_nothing_stops_the_streams() -> None:
    sources = [Source(1000) for _ in range(3)]
    async with contextlib.aclosing(ready_outputs([source.stream() for source in sources])) as batches:
        await anext(batches)
        for _ in range(20):
            await asyncio.sleep(0)
        assert max(source.num_made for source in sources) < 10
    assert all(source.is_closed for source in sources)


@pytest.mark.parametrize("num_sources", [1, 3])
async def test_the_error_of_a_stream_is_raised_and_ends_the_others(num_sources: int) -> None:
    never = asyncio.Event()
    others = [Source(1, may_go_on=never) for _ in range(num_sources - 1)]
    streams = [source.stream() for source in [Source(1, fails=True), *others]]
    async with contextlib.aclosing(ready_outputs(streams)) as batches:
        with pytest.raises(EngineGenerateError, match="this one fails"):
            _ = [batch async for batch in batches]
    assert all(source.is_closed for source in others)


@pytest.mark.parametrize("num_sources", [1, 3])
async def test_cancelling_the_consumer_closes_every_stream(num_sources: int) -> None:
    sources = [Source(1, may_go_on=asyncio.Event()) for _ in range(num_sources)]
    has_begun = asyncio.Event()

    async def consume() -> None:
        async with contextlib.aclosing(ready_outputs([source.stream() for source in sources])) as batches:
            async for _ in batches:
                has_begun.set()

    task = asyncio.create_task(consume())
    await has_begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert all(source.is_closed for source in sources)
