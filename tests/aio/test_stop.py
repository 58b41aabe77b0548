"""How a server is told to stop by signals."""

import asyncio
import os
import signal

import pytest

from headrace.aio.stop import StopRequest, catch_signals, stopped_by_signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_requests_a_stop_and_a_second_one_repeats_it(number: signal.Signals) -> None:
    stop = StopRequest()
    with stopped_by_signals(stop):
        os.kill(os.getpid(), number)
        async with asyncio.timeout(20):
            await stop.requested.wait()
        assert not stop.repeated.is_set()
        os.kill(os.getpid(), number)
        async with asyncio.timeout(20):
            await stop.repeated.wait()


async def test_signals_that_a_library_took_are_taken_back() -> None:
    stop = StopRequest()
    taken: list[int] = []
    with stopped_by_signals(stop):
        signal.signal(signal.SIGTERM, lambda number, frame: taken.append(number))
        catch_signals(stop)
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(20):
            await stop.requested.wait()

    assert taken == []
