"""How many requests of this gateway an endpoint has in hand. Reserved when it is chosen, not when reached, so that
a burst of choices in one moment does not all fall on the same endpoint."""

import asyncio
from dataclasses import dataclass
from types import TracebackType
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadStatistics:
    """Requests of one endpoint, now and ever."""

    num_in_flight: int
    num_waiting_tokens: int
    num_done: int
    num_failed: int
    num_cancelled: int


class EndpointLoad:
    """The counts of one endpoint."""

    def __init__(self) -> None:
        self.num_in_flight = 0
        self.num_waiting_tokens = 0
        """New prompt tokens of the requests that have no answer yet."""
        self._num_done = 0
        self._num_failed = 0
        self._num_cancelled = 0
        self._idle: asyncio.Event | None = None

    async def wait_idle(self) -> None:
        """Wait until no request is in flight."""
        while self.num_in_flight:
            if self._idle is None:
                self._idle = asyncio.Event()
            self._idle.clear()
            await self._idle.wait()

    def reserve(self, *, num_new_tokens: int = 0) -> "Reservation":
        """Count one request from now until the reservation is left. Use it as a context manager. The prompt tokens that
        must be computed for it count until it is answered."""
        self.num_in_flight += 1
        self.num_waiting_tokens += num_new_tokens
        return Reservation(self, num_new_tokens=num_new_tokens)

    def count_end(self, *, is_done: bool | None) -> None:
        """One request ended: well, badly, or (None) because its client left."""
        self.num_in_flight -= 1
        if self._idle is not None and not self.num_in_flight:
            self._idle.set()
        if is_done is None:
            self._num_cancelled += 1
        elif is_done:
            self._num_done += 1
        else:
            self._num_failed += 1

    def statistics(self) -> LoadStatistics:
        return LoadStatistics(
            num_in_flight=self.num_in_flight,
            num_waiting_tokens=self.num_waiting_tokens,
            num_done=self._num_done,
            num_failed=self._num_failed,
            num_cancelled=self._num_cancelled,
        )

    def __repr__(self) -> str:
        return f"EndpointLoad(num_in_flight={self.num_in_flight}, num_done={self._num_done})"


class Reservation:
    """One request's place in an endpoint's count; given back exactly once, when its block is left.

    Left by an exception other than a failure noted with `note`, the request counts as cancelled.
    """

    __slots__ = ("_is_done", "_is_open", "_load", "_num_new_tokens")

    def __init__(self, load: EndpointLoad, *, num_new_tokens: int) -> None:
        self._load = load
        self._num_new_tokens = num_new_tokens
        self._is_open = True
        self._is_done: bool | None = None

    def note_answering(self) -> None:
        """Its prompt is computed."""
        self._load.num_waiting_tokens -= self._num_new_tokens
        self._num_new_tokens = 0

    def note(self, *, is_done: bool) -> None:
        """How the request ended."""
        self._is_done = is_done

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._is_open:
            self._is_open = False
            self.note_answering()
            self._load.count_end(is_done=self._is_done)
