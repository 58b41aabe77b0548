"""Begins a stream that has to wait for its first output: its client sees that the request was taken.

Not at once: what the engine's core refuses it refuses within a step or so, and that is still told with a status.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from headrace.aio.tasks import TaskOwner
from headrace.server.intake import ClientGoneError

BEGINS_AFTER_S = 0.25


class EarlyHead:
    """Calls `begin` when the block has run for `after_s` and nobody has called `settle`; never after that.

    That its client has gone is for others to find out.
    """

    def __init__(self, begin: Callable[[], Awaitable[None]], *, after_s: float = BEGINS_AFTER_S) -> None:
        self._begin = begin
        self._after_s = after_s
        self._owner = TaskOwner("early head")
        self._task: asyncio.Task[None] | None = None
        self._is_beginning = False

    async def __aenter__(self) -> Self:
        self._task = self._owner.spawn(self._begin_late(), name="early head")
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if not isinstance(exc, asyncio.CancelledError):
                await self.settle()  # an error of the stream comes after a whole beginning
        finally:
            await self._owner.aclose()

    async def settle(self) -> None:
        """Returns when `begin` has ended, or will never be called. Raises what it raised."""
        if self._task is None:
            return
        task, self._task = self._task, None
        if self._is_beginning:
            await task
        else:
            task.cancel()

    async def _begin_late(self) -> None:
        await asyncio.sleep(self._after_s)
        self._is_beginning = True
        with contextlib.suppress(ClientGoneError):
            await self._begin()

    def __repr__(self) -> str:
        return f"EarlyHead(is_beginning={self._is_beginning})"
