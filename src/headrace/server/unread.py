"""Ends a connection whose client takes nothing of what waits for it. Knows neither requests nor answers."""

import asyncio
import logging

_LOG = logging.getLogger(__name__)

_LEAST_TAKEN_BYTES = 1024
"""A client that takes less within one deadline counts as one that reads nothing."""


class UnreadWatch:
    """Looks at a transport's write buffer, from `begin` to `end`, once in `timeout_s`."""

    def __init__(self, transport: asyncio.Transport, *, timeout_s: float) -> None:
        self._transport = transport
        self._timeout_s = timeout_s
        self._num_waiting_bytes = 0
        self._next_look: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """From now on something must be taken within each deadline. Nothing happens when it has begun already."""
        if self._next_look is None:
            self._look_later()

    def end(self) -> None:
        if self._next_look is not None:
            self._next_look.cancel()
            self._next_look = None

    def _look_later(self) -> None:
        self._num_waiting_bytes = self._transport.get_write_buffer_size()
        self._next_look = asyncio.get_running_loop().call_later(self._timeout_s, self._look)

    def _look(self) -> None:
        self._next_look = None
        num_bytes = self._transport.get_write_buffer_size()
        if self._num_waiting_bytes - num_bytes >= _LEAST_TAKEN_BYTES:
            self._look_later()
        elif num_bytes:
            _LOG.info("a connection is cut: its client left %d bytes unread for %g s", num_bytes, self._timeout_s)
            self._transport.abort()
