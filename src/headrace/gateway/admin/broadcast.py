"""One producer, a bounded number of listeners, and only the latest value matters. Belongs to one event loop."""

import asyncio
from collections.abc import AsyncIterator

from headrace.errors import OverloadedError


class Broadcast:
    """Hands every value to all who listen. Who is slow misses values rather than piling them up."""

    def __init__(self, *, max_listeners: int) -> None:
        self._max_listeners = max_listeners
        self._latest: bytes | None = None
        self._changed = asyncio.Event()
        self._is_closed = False
        self.num_listeners = 0

    @property
    def latest(self) -> bytes | None:
        """The last value, if there was one."""
        return self._latest

    def publish(self, value: bytes) -> None:
        """Give `value` to all who listen now."""
        self._latest = value
        self._wake()

    def close(self) -> None:
        """End every listener's iteration. Idempotent."""
        self._is_closed = True
        self._wake()

    def listen(self) -> AsyncIterator[bytes]:
        """The latest value, and then each new one. Raises OverloadedError when too many listen."""
        if self.num_listeners >= self._max_listeners:
            raise OverloadedError(f"{self._max_listeners} listen already, which is the limit.", retry_after_s=5.0)
        return self._values()

    async def _values(self) -> AsyncIterator[bytes]:
        self.num_listeners += 1
        try:
            if self._latest is not None:
                yield self._latest
            while not self._is_closed:
                await self._changed.wait()
                if self._latest is not None and not self._is_closed:
                    yield self._latest
        finally:
            self.num_listeners -= 1

    def _wake(self) -> None:
        event, self._changed = self._changed, asyncio.Event()
        event.set()

    def __repr__(self) -> str:
        return f"Broadcast(num_listeners={self.num_listeners})"
