"""The two ways an answer goes out: as server-sent events while it grows, or whole at its end.

Before the first byte an error is raised to whoever answers with its status; after it, it is an event of its own, and
the stream then ends without `[DONE]`, so that no client takes it for complete.
"""

import asyncio
from collections.abc import AsyncIterator

from headrace.engine.outputs import CompletionOutput, RequestOutput
from headrace.errors import EngineGenerateError, HeadraceError, OverloadedError
from headrace.openai.errors import error_body
from headrace.openai.sse import DONE, encode_event
from headrace.server.answers import unexpected_error_body
from headrace.server.generation_api import Chunks
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

    def __init__(self, writer: Writer, chunks: Chunks, tally: Tally, *, include_usage: bool) -> None:
        self._writer = writer
        self._chunks = chunks
        self._tally = tally
        self._include_usage = include_usage
        self._opened: set[int] = set()

    async def send(self, batches: AsyncIterator[Batch]) -> None:
        """Send every output as it comes. Raises what fails before the first byte; later failures become an event."""
        try:
            await self._send_all(batches)
        except ClientGoneError:
            raise
        except HeadraceError as error:
            if not self._writer.has_started:
                raise
            await self._writer.end(encode_event(error_body(error)))
        except Exception:
            if self._writer.has_started:
                await self._writer.end(encode_event(unexpected_error_body()))
            raise

    async def _send_all(self, batches: AsyncIterator[Batch]) -> None:
        last_events: list[bytes] = []
        async for batch in batches:
            events = [self._events(index, output) for index, output in batch]
            if not self._writer.has_started:
                await self._writer.start(_HEADERS)
            if self._tally.is_complete:
                last_events = events  # they leave with what closes the stream
            else:
                await self._writer.write(b"".join(events))
        _check_complete(self._tally)
        usage = self._chunks.usage(self._tally.usage()) if self._include_usage else b""
        await self._writer.end(b"".join([*last_events, usage, DONE]))

    def _events(self, index: int, output: RequestOutput) -> bytes:
        completion = _count(index, output, self._tally)
        events = b""
        if index not in self._opened:
            self._opened.add(index)
            events += self._chunks.opening(index)
        if completion.text:
            events += self._chunks.text(index, completion.text)
        if output.finished:
            events += self._chunks.finish(index, completion)
        return events


async def finished_outputs(batches: AsyncIterator[Batch], tally: Tally) -> list[CompletionOutput]:
    """The finished choice of every prompt, in the prompts' order."""
    finished: dict[int, CompletionOutput] = {}
    async for batch in batches:
        for index, output in batch:
            finished[index] = _count(index, output, tally)
    _check_complete(tally)
    return [finished[index] for index in sorted(finished)]


def _count(index: int, output: RequestOutput, tally: Tally) -> CompletionOutput:
    tally.add(index, output, now=asyncio.get_running_loop().time())
    completion = output.outputs[0]
    if completion.finish_reason == "abort":  # not by this client, which would not be listening
        raise OverloadedError("the request was aborted before its answer was complete; try again", code="aborted")
    return completion


def _check_complete(tally: Tally) -> None:
    if not tally.is_complete:
        raise EngineGenerateError("the engine ended the answer before it was complete")
