"""Deadlines of many connections, checked together.

A timer per connection and phase would be set and cancelled several times a request; here a connection only assigns a
number, and one sweep looks at all of them. A deadline is noticed up to one interval late.
"""

import asyncio
from typing import Protocol


class Watched(Protocol):
    """Something that has a deadline: a time of the loop's clock, or None while it waits for nobody."""

    deadline_s: float | None

    def on_deadline(self) -> None:
        """The deadline has passed; it was set to None. Must not block."""


class Deadlines:
    """Sweeps what is watched every `interval_s`. Belongs to one running loop."""

    def __init__(self, *, interval_s: float) -> None:
        self._interval_s = interval_s
        self._loop = asyncio.get_running_loop()
        self._watched: set[Watched] = set()
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, item: Watched) -> None:
        """Look at `item.deadline_s` from now on."""
        self._watched.add(item)
        if self._timer is None:
            self._timer = self._loop.call_later(self._interval_s, self._sweep)

    def forget(self, item: Watched) -> None:
        """Look at it no more. Safe to call twice."""
        self._watched.discard(item)

    def close(self) -> None:
        """Stop the sweep."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._watched.clear()

    def _sweep(self) -> None:
        now_s = self._loop.time()
        due = [item for item in self._watched if item.deadline_s is not None and item.deadline_s <= now_s]
        for item in due:
            item.deadline_s = None
            item.on_deadline()
        self._timer = self._loop.call_later(self._interval_s, self._sweep) if self._watched else None

    def __len__(self) -> int:
        return len(self._watched)

    def __repr__(self) -> str:
        return f"Deadlines(num_watched={len(self._watched)}, interval_s={self._interval_s})"
