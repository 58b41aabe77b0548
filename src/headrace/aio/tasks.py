"""Background tasks that somebody owns.

asyncio keeps only weak references to tasks, and the exception of a task that nobody awaits is lost until the garbage
collector finds it. A `TaskOwner` holds its tasks, logs what they raise, and ends them all when it is closed.
"""

import asyncio
import logging
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

_LOG = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")


class TaskOwner:
    """Spawns tasks, keeps them alive, and cancels and awaits them when closed.

    Belongs to one event loop and is used from its thread only. `len(owner)` counts the tasks that still run.
    """

    def __init__(self, name: str = "tasks") -> None:
        self._name = name
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    def spawn(self, coro: Coroutine[Any, Any, ResultT], *, name: str) -> asyncio.Task[ResultT]:
        """Start `coro` as a task named `name`. What it raises is logged once, here, whether it is awaited or not.

        Raises RuntimeError when the owner is closed; the coroutine is then closed too, so that nothing warns later.
        """
        if self._is_closed:
            coro.close()
            raise RuntimeError(f"{self!r} is closed and starts no task {name!r}")
        task = asyncio.get_running_loop().create_task(coro, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            _LOG.error("task %r of %r ended with an error", task.get_name(), self._name, exc_info=error)

    async def wait_all(self) -> None:
        """Wait until every task has ended, as they do by themselves; those spawned meanwhile too."""
        caller = asyncio.current_task()
        while pending := self._tasks - {caller}:
            await asyncio.wait(pending)

    async def aclose(self) -> None:
        """Cancel every task and return when all have ended. Idempotent; a task of the owner that calls it is spared.

        When the caller is cancelled meanwhile, the cancellation goes through and the tasks, already cancelled, end on
        their own.
        """
        self._is_closed = True
        caller = asyncio.current_task()
        for task in self._tasks:
            if task is not caller:
                task.cancel()
        await self.wait_all()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __len__(self) -> int:
        return len(self._tasks)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open"
        return f"TaskOwner({self._name!r}, {state}, num_tasks={len(self._tasks)})"
