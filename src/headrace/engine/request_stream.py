"""A request's outputs as an asynchronous iterator; leaving it early aborts the request."""

import asyncio
from collections.abc import Callable
from typing import Self

from headrace.engine.outputs import RequestOutput
from headrace.engine.request_progress import RequestProgress


class RequestStream:
    """Iterates over the outputs of one request; for one consumer.

    A cancelled iteration may be taken up again: nothing is lost. Raises the request's error where it occurred. Whoever
    does not iterate to the end calls `aclose` (or `close`), or the request runs to its end for nobody.
    """

    def __init__(self, *, on_close: Callable[[RequestProgress], None]) -> None:
        self._on_close = on_close
        self._progress: RequestProgress | None = None
        self._has_news = asyncio.Event()
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<RequestStream {'closed' if self._is_closed else 'open'} {self._progress!r}>"

    def notify(self) -> None:
        self._has_news.set()

    def attach(self, progress: RequestProgress) -> None:
        self._progress = progress

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RequestOutput:
        assert self._progress is not None
        while not (self._is_closed or self._progress.is_exhausted):
            if (output := self._progress.take()) is not None:
                return output
            self._has_news.clear()
            await self._has_news.wait()
        raise StopAsyncIteration

    def close(self) -> None:
        """Abort the request if it has not ended. Idempotent, does not wait; the core frees the blocks soon."""
        if self._is_closed:
            return
        self._is_closed = True
        self._has_news.set()
        if self._progress is not None:
            self._on_close(self._progress)

    async def aclose(self) -> None:
        """The same, under the name that `contextlib.aclosing` calls."""
        self.close()
