import asyncio
import time

import pytest

from headrace.testing.virtual_time import VirtualDeadlockError, run_virtual


def test_a_day_of_sleep_takes_no_time_and_the_clock_shows_it() -> None:
    async def main() -> float:
        await asyncio.sleep(24 * 3600)
        return asyncio.get_running_loop().time()

    begun_s = time.monotonic()
    assert run_virtual(main()) == pytest.approx(24 * 3600)
    assert time.monotonic() - begun_s < 5


def test_timers_fire_in_exact_order() -> None:
    order: list[float] = []

    async def note(delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        order.append(delay_s)

    async def main() -> None:
        await asyncio.gather(*[note(delay_s) for delay_s in (3.0, 1.0, 2.0, 1.5)])

    run_virtual(main())
    assert order == [1.0, 1.5, 2.0, 3.0]


def test_a_timeout_fires_at_its_time() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == pytest.approx(60)


def test_waiting_for_ever_is_an_error_at_once() -> None:
    with pytest.raises(VirtualDeadlockError):
        run_virtual(asyncio.Event().wait())
