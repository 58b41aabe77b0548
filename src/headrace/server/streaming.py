"""The two ways an answer goes out: as server-sent events while it grows, or whole at its end.

Before the first byte an error is raised to whoever answers with its status; after it, it is an event of its own, and
the stream then ends without what closes a complete one, so that no client takes it for that.
"""

import contextlib
from collections.abc import AsyncIterator

from headrace.engine.outputs import RequestOutput
from headrace.errors import EngineGenerateError, HeadraceError, OverloadedError
from headrace.server.answers import unexpected_error
from headrace.server.early_head import EarlyHead
from headrace.server.generation_api import Choice, Chunks
from headrace.server.intake import ClientGoneError
from headrace.server.ready_outputs import Batch
from headrace.server.tally import Tally
from headrace.server.writer import Writer

_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # nginx would hold the events back
}


class EventStream:
    """One answer, sent as events. Outputs that are ready together leave in one write."""

    def __init__(self, writer: Writer, chunks: Chunks, tally: Tally, *, num_each: int) -> None:
        """`num_each` is the number of choices of each prompt."""
        self._writer = writer
        self._num_each = num_each
        self._chunks = chunks
        self._tally = tally
        self._opened: set[int] = set()

    async def send(self, batches: AsyncIterator[Batch], *, begins_early_with: int | None = None) -> None:
        """Send every output as it comes. Raises what fails before the first byte; later failures become an event.

        `begins_early_with` is the prompt's number of tokens, for streams that may begin before their first output.
        """
        try:
            async with contextlib.AsyncExitStack() as stack:
                early: EarlyHead | None = None
                if begins_early_with is not None:
                    num_prompt_tokens = begins_early_with
                    early = await stack.enter_async_context(EarlyHead(lambda: self._begin(num_prompt_tokens)))
                await self._send_all(batches, early)
        except ClientGoneError:
            raise
        except HeadraceError as error:
            if not self._writer.has_started:
                raise
            await self._writer.end(self._chunks.failure(error))
        except Exception:
            if self._writer.has_started:
                await self._writer.end(self._chunks.failure(unexpected_error()))
            raise

    async def _begin(self, num_prompt_tokens: int) -> None:
        events = self._chunks.beginning(num_prompt_tokens=num_prompt_tokens, num_cached_tokens=0)
        await self._writer.start(_HEADERS)
        await self._writer.write(events)

    async def _send_all(self, batches: AsyncIterator[Batch], early: EarlyHead | None) -> None:
        last_events: list[bytes] = []
        async for batch in batches:
            if early is not None:
                await early.settle()
            events = [] if self._writer.has_started else [self._first_events(batch)]
            events += [await self._events(index, output) for index, output in batch]
            if not self._writer.has_started:
                await self._writer.start(_HEADERS)
            if self._tally.is_complete:
                last_events = events  # they leave with what closes the stream
            else:
                await self._writer.write(b"".join(events))
        _check_complete(self._tally)
        await self._writer.end(b"".join([*last_events, self._chunks.closing(self._tally.usage())]))

    def _first_events(self, batch: Batch) -> bytes:
        _, output = batch[0]
        return self._chunks.beginning(
            num_prompt_tokens=len(output.prompt_token_ids), num_cached_tokens=output.num_cached_tokens
        )

    async def _events(self, index: int, output: RequestOutput) -> bytes:
        events = b""
        for choice in _count(index, output, self._tally, num_each=self._num_each):
            if choice.index not in self._opened:
                self._opened.add(choice.index)
                events += await self._chunks.opening(choice)
            events += self._chunks.text(choice)
            if choice.completion.is_finished:
                events += self._chunks.finish(choice)
        return events


async def finished_choices(batches: AsyncIterator[Batch], tally: Tally, *, num_each: int) -> list[Choice]:
    """The finished choices of every prompt, in the prompts' order."""
    finished: dict[int, Choice] = {}
    async for batch in batches:
        for index, output in batch:
            for choice in _count(index, output, tally, num_each=num_each):
                finished[choice.index] = choice
    _check_complete(tally)
    return [finished[index] for index in sorted(finished)]


def _count(prompt_index: int, output: RequestOutput, tally: Tally, *, num_each: int) -> list[Choice]:
    tally.add(prompt_index, output)
    if any(completion.finish_reason == "abort" for completion in output.outputs):
        # Not by this client, which would not be listening.
        raise OverloadedError("the request was aborted before its answer was complete; try again", code="aborted")
    first = prompt_index * num_each
    return [Choice(first + completion.index, prompt_index, completion, output) for completion in output.outputs]


def _check_complete(tally: Tally) -> None:
    if not tally.is_complete:
        raise EngineGenerateError("the engine ended the answer before it was complete")
