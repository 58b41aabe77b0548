"""A request's outputs as an asynchronous iterator; leaving it early aborts the request."""

import asyncio
from collections.abc import Callable
from typing import Generic, Self, TypeVar

from headrace.engine.front.live_request import OutputSource
from headrace.errors import EngineError

OutputT = TypeVar("OutputT")


class RequestStream(Generic[OutputT]):
    """Iterates over the outputs of one request; for one consumer.

    A cancelled iteration may be taken up again: nothing is lost. Raises the request's error where it occurred, and
    EngineError for a second task that iterates at the same time. Whoever does not iterate to the end calls `aclose` (or
    `close`), or the request runs to its end for nobody.
    """

    def __init__(self) -> None:
        self._source: OutputSource[OutputT] | None = None
        self._on_close: Callable[[], None] | None = None
        self._waiter: asyncio.Future[None] | None = None
        """Of the consumer, while it waits; a bare future costs half of what an Event does, for every token."""
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<RequestStream {'closed' if self._is_closed else 'open'} {self._source!r}>"

    def notify(self) -> None:
        """The source has something to give."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def attach(self, source: OutputSource[OutputT], *, on_close: Callable[[], None]) -> None:
        """Where the outputs come from, and what ends the request when the consumer leaves."""
        self._source = source
        self._on_close = on_close

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> OutputT:
        assert self._source is not None
        while not self._is_closed:
            if (output := self._source.take()) is not None:
                return output
            if self._source.is_exhausted:
                break
            if self._waiter is not None and not self._waiter.done():
                raise EngineError("two tasks iterate over one request's stream; it is for one consumer")
            waiter = self._waiter = asyncio.get_running_loop().create_future()
            try:
                await waiter
            finally:
                if self._waiter is waiter:
                    self._waiter = None
        raise StopAsyncIteration

    def close(self) -> None:
        """Abort the request if it has not ended. Idempotent, does not wait; the core frees the blocks soon."""
        if self._is_closed:
            return
        self._is_closed = True
        self.notify()
        if self._on_close is not None:
            self._on_close()

    async def aclose(self) -> None:
        """The same, under the name that `contextlib.aclosing` calls."""
        self.close()
