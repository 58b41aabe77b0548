"""Several asynchronous iterators read as one, and one read to its end, with every source closed on every path.

Closing a generator while its step runs is an error, and stepping it from several tasks breaks the timeouts inside it.
So each source is read by one task of its own from beginning to end, and that task closes it.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

_LOG = logging.getLogger(__name__)

ItemT = TypeVar("ItemT")


async def merge_async_iterators(*iterators: AsyncIterator[ItemT]) -> AsyncGenerator[tuple[int, ItemT], None]:
    """Yield `(index, item)` in the order in which items come from `iterators`, until all have ended.

    Each source is asked for one item ahead, no more. An exception of a source ends the merge and reaches the caller.
    However a merge that has begun ends (exhaustion, exception, cancellation, `aclose`), every source has been closed
    before it returns; what a source raises while it is closed is logged.
    """
    if len(iterators) == 1:
        try:
            async for item in iterators[0]:
                yield 0, item
        finally:
            await _close(iterators[0])
        return
    merge = _Merge(iterators)
    try:
        while merge.readers:
            arrival = await merge.arrivals.get()
            if isinstance(arrival, asyncio.Task):
                merge.readers.remove(arrival)
                arrival.result()
            else:
                arrival.is_taken.set()
                yield arrival.index, arrival.item
    finally:
        await merge.stop()


async def collect_from_async_generator(iterator: AsyncIterator[ItemT]) -> list[ItemT]:
    """Every item, in order. The source is closed also when it raises or the caller is cancelled."""
    try:
        return [item async for item in iterator]
    finally:
        await _close(iterator)


@dataclass(slots=True)
class _Item(Generic[ItemT]):
    index: int
    item: ItemT
    is_taken: asyncio.Event = field(default_factory=asyncio.Event)


class _Merge(Generic[ItemT]):
    """The tasks that read the sources, and what they bring: never more than one item and one end for each source."""

    def __init__(self, sources: Sequence[AsyncIterator[ItemT]]) -> None:
        self.arrivals: asyncio.Queue[_Item[ItemT] | asyncio.Task[None]] = asyncio.Queue()
        self._is_stopping = False
        self.readers = [
            asyncio.create_task(self._read(source, index), name=f"merge-source-{index}")
            for index, source in enumerate(sources)
        ]
        for reader in self.readers:
            reader.add_done_callback(self.arrivals.put_nowait)

    async def _read(self, source: AsyncIterator[ItemT], index: int) -> None:
        try:
            async for item in source:
                if self._is_stopping:  # a source that swallows its cancellation is stopped here
                    return
                arrival = _Item(index, item)
                self.arrivals.put_nowait(arrival)
                await arrival.is_taken.wait()
        finally:
            await _close(source)

    async def stop(self) -> None:
        """Cancel and await all readers. A cancellation meanwhile goes on to them and is raised at the end."""
        self._is_stopping = True
        interruption: asyncio.CancelledError | None = None
        for reader in self.readers:
            reader.cancel()
        while pending := [reader for reader in self.readers if not reader.done()]:
            try:
                await asyncio.wait(pending)
            except asyncio.CancelledError as error:
                interruption = error
                for reader in pending:
                    reader.cancel()
        self._log_failures()
        if interruption is not None:
            raise interruption

    def _log_failures(self) -> None:
        for reader in self.readers:
            if not reader.cancelled() and (failure := reader.exception()) is not None:
                _LOG.error("a merged source failed while the merge ended", exc_info=failure)


async def _close(iterator: AsyncIterator[object]) -> None:
    close = getattr(iterator, "aclose", None)
    if close is not None:
        await close()
