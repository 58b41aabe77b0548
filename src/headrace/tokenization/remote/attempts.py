"""Runs one request to endpoints: its attempts, the pauses between them, and the one deadline over all of them."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from headrace.errors import HeadraceError
from headrace.tokenization.remote.errors import is_transient
from headrace.tokenization.remote.retry import RetryPolicy
from headrace.tokenization.remote.wire import RemoteWire, Steps, assembling

ResultT = TypeVar("ResultT")


async def with_retries(
    attempt: Callable[[float], Awaitable[ResultT]],
    *,
    timeout_s: float,
    pause_s: Callable[[HeadraceError, int, float], float | None],
    on_retry: Callable[[], None],
) -> ResultT:
    """The result of the first good `attempt`, which is given the deadline, by the loop's clock, that it must keep.

    `pause_s` is asked after each failure, with its number from 1 and the time left; None ends it. Raises what the last
    attempt raised.
    """
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_s
    num_failures = 0
    while True:
        try:
            return await attempt(deadline_s)
        except HeadraceError as error:
            num_failures += 1
            before_next_s = pause_s(error, num_failures, deadline_s - loop.time())
            if before_next_s is None:
                raise
        on_retry()
        await asyncio.sleep(before_next_s)


def pause_before_the_same_s(
    policy: RetryPolicy, error: HeadraceError, num_failures: int, time_left_s: float
) -> float | None:
    """How long to wait after `error` before the same endpoint is asked again; None: do not."""
    if not is_transient(error):
        return None
    return policy.pause_s(num_failures=num_failures, retry_after_s=error.retry_after_s, time_left_s=time_left_s)


async def in_steps(steps: Steps[ResultT]) -> ResultT:
    """The result of `steps`; between two of them the event loop serves everybody else."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: ResultT = stop.value
            return result
        await asyncio.sleep(0)


class RequestBodies:
    """The body of one request, written once for each kind of engine that it goes to."""

    def __init__(self, write: Callable[[RemoteWire], Iterator[bytes]], *, max_bytes: int) -> None:
        """`write` gives the pieces."""
        self._write = write
        self._max_bytes = max_bytes
        self._written: dict[type[RemoteWire], bytes] = {}

    async def body(self, wire: RemoteWire) -> bytes:
        """The body for `wire`. Raises UnsupportedError, InvalidRequestError and PayloadTooLargeError."""
        body = self._written.get(type(wire))
        if body is None:
            body = await in_steps(assembling(self._write(wire), max_bytes=self._max_bytes))
            self._written[type(wire)] = body
        return body
