"""Joins the output streams of one request's prompts, handing over together what is ready together."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import TypeAlias, TypeVar

from headrace.aio.tasks import TaskOwner
from headrace.engine.outputs import RequestOutput
from headrace.server.engine_seam import OutputStream

OutputT = TypeVar("OutputT")

Batch: TypeAlias = list[tuple[int, RequestOutput]]
"""Outputs with the index of the prompt each belongs to; those of one prompt stand in order."""

_Queue: TypeAlias = asyncio.Queue[tuple[int, OutputT] | Exception | None]


async def ready_outputs(
    streams: Sequence[OutputStream[OutputT]],
) -> AsyncGenerator[list[tuple[int, OutputT]], None]:
    """Batches until every stream has ended; the first error of a stream ends them all and is raised.

    Holds at most one output for each stream, so a slow consumer slows the streams. Closing it closes them and waits.
    """
    if len(streams) == 1:
        async with contextlib.aclosing(streams[0]):
            async for output in streams[0]:
                yield [(0, output)]
        return
    async with TaskOwner("prompts of one request") as owner:
        queue: _Queue[OutputT] = asyncio.Queue()  # bounded by the rooms
        rooms = [asyncio.Semaphore(1) for _ in streams]
        for index, stream in enumerate(streams):
            owner.spawn(_pump(index, stream, queue, rooms[index]), name=f"prompt {index}")
        num_open = len(streams)
        while num_open:
            waiting = [await queue.get()]
            while not queue.empty():
                waiting.append(queue.get_nowait())
            num_open -= waiting.count(None)
            if batch := [_output(item) for item in waiting if item is not None]:
                yield batch
            for index, _ in batch:
                rooms[index].release()


async def _pump(index: int, stream: OutputStream[OutputT], queue: _Queue[OutputT], room: asyncio.Semaphore) -> None:
    """Puts the stream's outputs into the queue, the next one when the one before has been consumed."""
    try:
        async with contextlib.aclosing(stream):
            await room.acquire()
            async for output in stream:
                queue.put_nowait((index, output))
                await room.acquire()
        queue.put_nowait(None)
    except Exception as error:  # noqa: BLE001 - whatever it is, the consumer raises it
        queue.put_nowait(error)


def _output(item: tuple[int, OutputT] | Exception) -> tuple[int, OutputT]:
    if isinstance(item, Exception):
        raise item
    return item
