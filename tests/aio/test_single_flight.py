import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.aio.single_flight import SingleFlight
from headrace.errors import TokenizationError
from headrace.testing.virtual_time import run_virtual


class SlowWork:
    """Starts work that takes a second, and counts."""

    def __init__(self, error: Exception | None = None) -> None:
        self.num_started = 0
        self.error = error
        self.work: asyncio.Task[str] | None = None

    def start(self) -> asyncio.Future[str]:
        self.num_started += 1
        self.work = asyncio.create_task(self._run())
        return self.work

    async def _run(self) -> str:
        await asyncio.sleep(1)
        if self.error is not None:
            raise self.error
        return "result"


def test_equal_work_asked_for_together_runs_once() -> None:
    async def main() -> None:
        work, flights = SlowWork(), SingleFlight[str, str]()
        results = await asyncio.gather(*[flights.join("key", work.start) for _ in range(5)])
        assert (results, work.num_started, len(flights)) == (["result"] * 5, 1, 0)

    run_virtual(main())


def test_work_after_a_flight_has_landed_runs_again() -> None:
    async def main() -> None:
        work, flights = SlowWork(), SingleFlight[str, str]()
        await flights.join("key", work.start)
        await flights.join("key", work.start)
        assert work.num_started == 2

    run_virtual(main())


def test_the_first_asker_may_leave_and_the_others_get_the_result() -> None:
    async def main() -> None:
        work, flights = SlowWork(), SingleFlight[str, str]()
        first, second = [asyncio.create_task(flights.join("key", work.start)) for _ in range(2)]
        await asyncio.sleep(0.5)
        first.cancel()
        assert await second == "result"
        assert first.cancelled()

    run_virtual(main())


def test_the_work_is_cancelled_when_the_last_asker_leaves() -> None:
    async def main() -> None:
        work, flights = SlowWork(), SingleFlight[str, str]()
        askers = [asyncio.create_task(flights.join("key", work.start)) for _ in range(2)]
        await asyncio.sleep(0.5)
        for asker in askers:
            asker.cancel()
        await asyncio.wait(askers)
        assert len(flights) == 0
        assert work.work is not None
        await asyncio.wait([work.work])
        assert work.work.cancelled()

    run_virtual(main())


def test_whoever_asks_in_the_moment_the_last_asker_leaves_starts_anew() -> None:
    async def main() -> None:
        work, flights = SlowWork(), SingleFlight[str, str]()
        leaving = asyncio.create_task(flights.join("key", work.start))
        await asyncio.sleep(0.5)
        leaving.cancel()
        assert await asyncio.create_task(flights.join("key", work.start)) == "result"
        assert work.num_started == 2

    run_virtual(main())


def test_every_asker_gets_its_own_copy_of_an_error() -> None:
    async def main() -> None:
        work = SlowWork(TokenizationError("broken", param="prompt"))
        flights = SingleFlight[str, str]()
        errors = await asyncio.gather(*[flights.join("key", work.start) for _ in range(2)], return_exceptions=True)
        assert all(isinstance(error, TokenizationError) and error.param == "prompt" for error in errors)
        assert errors[0] is not errors[1]

    run_virtual(main())


def test_a_start_that_fails_leaves_no_flight() -> None:
    def fail() -> asyncio.Future[str]:
        raise TokenizationError("no room")

    async def main() -> None:
        flights = SingleFlight[str, str]()
        with pytest.raises(TokenizationError):
            await flights.join("key", fail)
        assert len(flights) == 0

    run_virtual(main())


@given(st.lists(st.tuples(st.floats(0, 3), st.floats(0, 3), st.sampled_from("ab")), max_size=12))
def test_whoever_stays_gets_the_result_whatever_the_others_do(askers: list[tuple[float, float, str]]) -> None:
    async def ask(flights: SingleFlight[str, str], work: SlowWork, asker: tuple[float, float, str]) -> str:
        begin_s, patience_s, key = asker
        await asyncio.sleep(begin_s)
        async with asyncio.timeout(patience_s):
            return await flights.join(key, work.start)

    async def main() -> None:
        work, flights = SlowWork(), SingleFlight[str, str]()
        results = await asyncio.gather(*[ask(flights, work, asker) for asker in askers], return_exceptions=True)
        for (_, patience_s, _), result in zip(askers, results, strict=True):
            assert result == "result" or isinstance(result, TimeoutError)
            assert result == "result" or patience_s <= 1
        await asyncio.sleep(0)
        assert len(flights) == 0

    run_virtual(main())
