"""An event loop in which waiting takes no time: when nothing can run, the clock jumps to the next timer.

For asyncio code without threads, sockets and processes: those finish outside this loop's clock.
"""

import asyncio
import selectors
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


class VirtualDeadlockError(RuntimeError):
    """Every task waits and no timer is set: in real time this would wait for ever."""


def run_virtual(main: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run `main` in a fresh loop of virtual time and return its result. `asyncio.timeout` and sleeps are exact.

    Raises VirtualDeadlockError as soon as everything waits.
    """
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Its `time()` starts at 0 and moves only when every task waits."""

    def __init__(self) -> None:
        self._jumps = _JumpingSelector()
        super().__init__(self._jumps)

    def time(self) -> float:
        return self._jumps.now_s


class _JumpingSelector(selectors.BaseSelector):
    """Passes on what is ready and, instead of waiting, adds the time it was to wait to the clock."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._inner = selectors.DefaultSelector()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = self._inner.select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise VirtualDeadlockError("every task waits, and no timer is set that could wake one")
        self.now_s += timeout
        return []

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._inner.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._inner.unregister(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._inner.get_map()

    def close(self) -> None:
        self._inner.close()
