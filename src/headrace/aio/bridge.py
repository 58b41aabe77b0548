"""Bridges between an event loop and the threads around it. Knows nothing of what is called."""

import asyncio
import contextvars
import functools
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
ResultT = TypeVar("ResultT")


def make_async(func: Callable[P, ResultT], executor: Executor | None = None) -> Callable[P, Awaitable[ResultT]]:
    """`func`, called in a thread of `executor` (None: the loop's own) and awaited.

    The wrapper is a coroutine function with the name and docstring of `func`; nothing runs before it is awaited. The
    caller's context variables are seen by the call. Cancelling the caller takes a call that has not begun out of the
    executor's queue; one that has begun runs to its end, and its result is dropped.
    """

    @functools.wraps(func)
    async def call_in_thread(*args: P.args, **kwargs: P.kwargs) -> ResultT:
        context = contextvars.copy_context()
        call = functools.partial(context.run, func, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(executor, call)

    return call_in_thread


def in_loop(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether the caller runs in `loop`, in its thread and under it."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def run_in_loop(loop: asyncio.AbstractEventLoop, func: Callable[..., object], *args: object) -> None:
    """Call `func(*args)` in `loop`: at once when the caller is in it, else as soon as the loop gets to it.

    The result is dropped. An exception reaches the caller in the first case and the loop's exception handler in the
    second. Raises RuntimeError when the loop is closed, also when it closes during this call.
    """
    if in_loop(loop):
        func(*args)
        return
    try:
        loop.call_soon_threadsafe(func, *args)
    except RuntimeError as error:
        if not loop.is_closed():
            raise
        raise RuntimeError(f"{_name_of(func)} was not called: its event loop is closed") from error


def cancel_task_threadsafe(task: asyncio.Task[Any] | None) -> None:
    """Cancel `task` from any thread. Does nothing for None, for a task that is done, and when its loop has closed."""
    if task is None or task.done():
        return
    loop = task.get_loop()
    try:
        run_in_loop(loop, task.cancel)
    except RuntimeError:
        if not loop.is_closed():
            raise


def _name_of(func: Callable[..., object]) -> str:
    return getattr(func, "__qualname__", None) or repr(func)
