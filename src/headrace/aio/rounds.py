"""Work that many ask for in the same round of the event loop, done in one go."""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from headrace.aio.raisable import raisable

A = TypeVar("A")
R = TypeVar("R")


class RoundBatch(Generic[A, R]):
    """Does what was asked for in one round of the event loop in the next, one right after the other.

    Work with much code and data of its own, such as a tokenizer's tables, takes two to three times as long between
    other work as after its like: the processor's caches then hold it, and whoever follows finds his own there too.

    Belongs to one event loop at a time. `do` is called in it and does not wait; what it raises goes to the caller that
    it was done for, and nobody else. A caller that was cancelled is passed over.
    """

    def __init__(self, do: Callable[[A], R]) -> None:
        self._do = do
        self._waiting: list[tuple[A, asyncio.Future[R]]] = []

    async def __call__(self, item: A) -> R:
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._run)
        future: asyncio.Future[R] = loop.create_future()
        self._waiting.append((item, future))
        return await future

    def _run(self) -> None:
        waiting, self._waiting = self._waiting, []
        for item, future in waiting:
            if future.done():
                continue
            try:
                future.set_result(self._do(item))
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # noqa: BLE001 - its caller's to handle; Rust panics are no Exceptions
                future.set_exception(raisable(error))

    def __len__(self) -> int:
        """Callers that wait."""
        return len(self._waiting)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"RoundBatch({self._do!r}, num_waiting={len(self._waiting)})"
