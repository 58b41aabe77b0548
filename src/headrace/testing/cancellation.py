"""Cancels a coroutine at a chosen await: the tool of the cancellation matrix.

A test runs the same coroutine with index 0, 1, 2, ... until it ends before the index is reached, and checks after each
run that nothing is left.
"""

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any


async def run_cancelled_at(coro: Coroutine[Any, Any, object], index: int) -> bool:
    """Run `coro` in a task of its own that is cancelled while it waits for the time number `index` (from 0).

    True when it got there; the cancellation must then have come out at the top, or this raises AssertionError. False
    when the coroutine ended before. What it raises otherwise is raised here.
    """
    watched = _Watched(coro, index)

    async def main() -> None:
        await watched

    task = asyncio.ensure_future(main())  # noqa: TID251 - awaited in the next line
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()
        assert not watched.was_cancelled, f"the cancellation at await {index} was swallowed"
    return watched.was_cancelled


class _Watched:
    """Passes everything between the coroutine and its task on, and cancels the task at one suspension."""

    def __init__(self, coro: Coroutine[Any, Any, object], index: int) -> None:
        self._coro = coro
        self._index = index
        self.was_cancelled = False

    def __await__(self) -> Generator[Any, Any, None]:
        steps = self._coro.__await__()
        error: BaseException | None = None
        num_suspensions = 0
        while True:
            try:
                waited_for = steps.send(None) if error is None else steps.throw(error)
            except StopIteration:
                return
            if num_suspensions == self._index:
                self._cancel_task()
            num_suspensions += 1
            error = None
            try:
                yield waited_for
            except BaseException as raised:  # noqa: BLE001 - it goes into the coroutine, whatever it is
                error = raised

    def _cancel_task(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.was_cancelled = True
        task.cancel()
