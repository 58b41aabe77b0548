"""How late the event loop is: a timer that should fire every 50 ms, and the longest delay since it was asked."""

import asyncio
import time

_INTERVAL_S = 0.05


class LoopLag:
    """Measures the running loop until closed."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._longest_s = 0.0
        self._due_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to measure."""
        self._due_s = time.monotonic() + _INTERVAL_S
        self._timer = self._loop.call_later(_INTERVAL_S, self._tick)

    def take_longest_s(self) -> float:
        """The longest delay since the last call, in seconds."""
        longest_s, self._longest_s = self._longest_s, 0.0
        return longest_s

    def close(self) -> None:
        """Stop. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._longest_s = max(self._longest_s, time.monotonic() - self._due_s)
        self.start()

    def __repr__(self) -> str:
        return f"LoopLag(longest_s={self._longest_s:.4f})"
