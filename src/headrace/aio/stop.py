"""How a server is told to stop: politely the first time, at once the second."""

import asyncio
import contextlib
import signal
from collections.abc import Iterator


class StopRequest:
    """`requested` is set by the first call of `request`, `repeated` by the second."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self.repeated = asyncio.Event()

    def request(self) -> None:
        if self.requested.is_set():
            self.repeated.set()
        self.requested.set()


@contextlib.contextmanager
def stopped_by_signals(stop: StopRequest) -> Iterator[None]:
    """SIGTERM and SIGINT request a stop while the block runs. For the main thread, inside its running loop."""
    loop = asyncio.get_running_loop()
    catch_signals(stop)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def catch_signals(stop: StopRequest) -> None:
    """Within `stopped_by_signals`, take the signals back from a library that has put handlers of its own there: Ray's,
    put there when it connects, aborts the process three seconds after SIGTERM."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.request)
