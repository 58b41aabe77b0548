"""A sample of the routing decisions as a file of JSON lines, which `headrace replay` reads.

Bounded: what the disk is too slow for is dropped and counted, and a file that is full becomes FILE.1, in place of the
one before.
"""

import asyncio
import contextlib
import logging
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headrace.aio.bridge import make_async
from headrace.aio.tasks import TaskOwner
from headrace.gateway.routing import Draw
from headrace.gateway.telemetry.decisions import TracedDecision

_LOG = logging.getLogger(__name__)
_MAX_WAITING = 10_000
_WRITE_INTERVAL_S = 1.0
_SHARES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionFileStatistics:
    """Decisions so far."""

    num_written: int
    num_dropped: int
    num_waiting: int


class DecisionFile:
    """A sink of the decision log. `share` of 1 takes all of them; `draw` is what chance is drawn with."""

    def __init__(self, path: Path, *, share: float, max_bytes: int, draw: Draw) -> None:
        self._path = path
        self._threshold = round(share * _SHARES)
        self._max_bytes = max_bytes
        self._draw = draw
        self._waiting: deque[bytes] = deque()
        self._num_written = 0
        self._num_dropped = 0
        self._has_failed = False
        self._owner = TaskOwner("decision log")
        self._writing: asyncio.Task[None] | None = None
        self._stop_asked = asyncio.Event()
        self._is_writing = asyncio.Lock()

    def start(self) -> None:
        """Begin to write."""
        self._writing = self._owner.spawn(self._write_now_and_then(), name="writing decisions")

    async def aclose(self) -> None:
        """Write what waits and end. Idempotent."""
        self._stop_asked.set()
        if self._writing is not None:
            await asyncio.wait([self._writing])  # cancelled in the middle, it would lose what it has in hand
        await self._owner.aclose()
        await self.flush()

    def wants_next(self) -> bool:
        return self._draw(_SHARES) < self._threshold

    def add(self, decision: TracedDecision) -> None:
        if len(self._waiting) >= _MAX_WAITING:
            self._num_dropped += 1
            return
        self._waiting.append(msgspec.json.encode(decision))

    async def flush(self) -> None:
        """Write what waits, in a thread, after what is being written. What cannot be written is dropped, and logged
        once in a row."""
        async with self._is_writing:
            await self._flush()

    async def _flush(self) -> None:
        lines, self._waiting = self._waiting, deque()
        if not lines:
            return
        try:
            await make_async(self._write)(b"\n".join(lines) + b"\n")
        except OSError as error:
            if not self._has_failed:
                _LOG.warning("decisions cannot be written to %s: %s", self._path, error.strerror or error)
            self._has_failed = True
            self._num_dropped += len(lines)
        else:
            self._has_failed = False
            self._num_written += len(lines)

    def statistics(self) -> DecisionFileStatistics:
        return DecisionFileStatistics(
            num_written=self._num_written, num_dropped=self._num_dropped, num_waiting=len(self._waiting)
        )

    def __repr__(self) -> str:
        return f"DecisionFile({self._path}, num_written={self._num_written}, num_dropped={self._num_dropped})"

    def _write(self, data: bytes) -> None:
        if self._path.exists() and self._path.stat().st_size + len(data) > self._max_bytes:
            self._path.replace(f"{self._path}.1")
        with self._path.open("ab") as file:
            file.write(data)

    async def _write_now_and_then(self) -> None:
        while not self._stop_asked.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_WRITE_INTERVAL_S):
                    await self._stop_asked.wait()
            await self.flush()
