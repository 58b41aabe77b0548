import asyncio
import contextlib
import gc
from collections.abc import AsyncGenerator, AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.aio import collect_from_async_generator, merge_async_iterators
from headrace.testing.virtual_time import run_virtual


class Source:
    """A source that notes how far it was read and whether its cleanup ran to the end."""

    def __init__(self, *delays_s: float, fails_at: int | None = None, cleanup_s: float = 0.0) -> None:
        self.num_started = 0
        self.is_closed = False
        self._delays_s = delays_s
        self._fails_at = fails_at
        self._cleanup_s = cleanup_s

    async def items(self) -> AsyncGenerator[int, None]:
        try:
            for number, delay_s in enumerate(self._delays_s):
                self.num_started += 1
                await asyncio.sleep(delay_s)
                if number == self._fails_at:
                    raise ValueError(f"source failed at {number}")
                yield number
        finally:
            await asyncio.sleep(self._cleanup_s)
            self.is_closed = True


async def anext_until_end(iterator: AsyncIterator[object]) -> None:
    async for _ in iterator:
        pass


def test_items_of_all_sources_come_in_order_of_time() -> None:
    async def main() -> list[tuple[int, int]]:
        merged = merge_async_iterators(Source(1, 3).items(), Source(2, 1).items())
        return [pair async for pair in merged]

    assert run_virtual(main()) == [(0, 0), (1, 0), (1, 1), (0, 1)]


def test_no_sources_give_no_items() -> None:
    assert run_virtual(collect_from_async_generator(merge_async_iterators())) == []


@given(st.lists(st.lists(st.floats(0, 2), max_size=4), max_size=4))
def test_every_item_comes_once_and_each_source_keeps_its_order(delays_s: list[list[float]]) -> None:
    sources = [Source(*of_one) for of_one in delays_s]

    async def main() -> list[tuple[int, int]]:
        return await collect_from_async_generator(merge_async_iterators(*[source.items() for source in sources]))

    pairs = run_virtual(main())
    assert sorted(pairs) == [(i, n) for i, of_one in enumerate(delays_s) for n in range(len(of_one))]
    for index, of_one in enumerate(delays_s):
        assert [number for i, number in pairs if i == index] == list(range(len(of_one)))


@pytest.mark.parametrize("num_sources", [1, 3])
def test_closing_early_waits_until_every_source_has_cleaned_up(num_sources: int) -> None:
    sources = [Source(1, 1, 1, cleanup_s=5) for _ in range(num_sources)]

    async def main() -> None:
        merged = merge_async_iterators(*[source.items() for source in sources])
        await anext(merged)
        await merged.aclose()
        assert all(source.is_closed for source in sources)

    run_virtual(main())


@pytest.mark.parametrize("num_sources", [1, 3])
def test_cancelling_the_reader_closes_every_source_and_is_not_swallowed(num_sources: int) -> None:
    sources = [Source(1, 100, cleanup_s=5) for _ in range(num_sources)]

    async def main() -> None:
        merged = merge_async_iterators(*[source.items() for source in sources])
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext_until_end(merged), 10)
        assert all(source.is_closed for source in sources)

    run_virtual(main())


def test_a_failing_source_ends_the_merge_and_the_others_are_closed_first() -> None:
    failing, other = Source(1, 1, fails_at=1), Source(100, cleanup_s=3)

    async def main() -> None:
        merged = merge_async_iterators(failing.items(), other.items())
        with pytest.raises(ValueError, match="source failed at 1"):
            await collect_from_async_generator(merged)
        assert other.is_closed

    run_virtual(main())


def test_sources_that_fail_together_leave_no_unretrieved_exception() -> None:
    unhandled: list[object] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
        merged = merge_async_iterators(Source(1, fails_at=0).items(), Source(1, fails_at=0).items())
        with pytest.raises(ValueError, match="source failed"):
            await collect_from_async_generator(merged)
        del merged
        gc.collect()
        await asyncio.sleep(0)

    run_virtual(main())
    assert unhandled == []


def test_each_source_is_asked_for_one_item_ahead_and_no_more() -> None:
    sources = [Source(*[0.0] * 10), Source(*[0.0] * 10)]

    async def main() -> None:
        merged = merge_async_iterators(*[source.items() for source in sources])
        for _ in range(4):
            await anext(merged)
        await asyncio.sleep(1)
        num_started = [source.num_started for source in sources]
        await merged.aclose()
        assert sum(num_started) == 4 + len(sources)

    run_virtual(main())


def test_a_second_cancellation_during_cleanup_still_closes_every_source() -> None:
    sources = [Source(1, 100, cleanup_s=50), Source(1, 100, cleanup_s=60)]
    has_begun = asyncio.Event()

    async def read() -> None:
        async for _ in merge_async_iterators(*[source.items() for source in sources]):
            has_begun.set()

    async def main() -> None:
        reader = asyncio.create_task(read())
        await has_begun.wait()
        reader.cancel()
        await asyncio.sleep(1)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        assert len(asyncio.all_tasks()) == 1

    run_virtual(main())


def test_a_source_that_swallows_its_cancellation_cannot_keep_the_merge_alive() -> None:
    async def stubborn() -> AsyncIterator[int]:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1)
            yield 0

    async def main() -> None:
        merged = merge_async_iterators(stubborn(), Source(1, 1).items())
        await anext(merged)
        await asyncio.sleep(0.5)  # both sources are at work on their next item
        await merged.aclose()
        assert len(asyncio.all_tasks()) == 1

    run_virtual(main())


def test_sources_that_were_begun_before_are_closed_when_the_first_step_is_cancelled() -> None:
    async def main() -> None:
        begun = [Source(0, 0, 0), Source(0, 0, 0)]
        iterators = [source.items() for source in begun]
        for iterator in iterators:
            await anext(iterator)
        merged = merge_async_iterators(*iterators)
        reader = asyncio.create_task(anext(merged))  # type: ignore[arg-type]
        asyncio.get_running_loop().call_soon(reader.cancel)
        with pytest.raises(asyncio.CancelledError):
            await reader
        assert all(source.is_closed for source in begun)

    run_virtual(main())


def test_stop_async_iteration_thrown_by_the_reader_is_not_eaten() -> None:
    async def main() -> None:
        merged = merge_async_iterators(Source(1, 1).items(), Source(1, 1).items())
        await anext(merged)
        with pytest.raises(RuntimeError, match="StopAsyncIteration"):
            await merged.athrow(StopAsyncIteration())

    run_virtual(main())


def test_iterators_without_aclose_are_merged_too() -> None:
    class Count:
        def __init__(self) -> None:
            self.number = 0

        def __aiter__(self) -> "Count":
            return self

        async def __anext__(self) -> int:
            self.number += 1
            if self.number > 2:
                raise StopAsyncIteration
            return self.number

    pairs = run_virtual(collect_from_async_generator(merge_async_iterators(Count(), Count())))
    assert sorted(pairs) == [(0, 1), (0, 2), (1, 1), (1, 2)]


def test_collect_closes_its_source_when_it_is_cancelled() -> None:
    source = Source(1, 100, cleanup_s=1)

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10):
                await collect_from_async_generator(source.items())
        assert source.is_closed

    run_virtual(main())


def test_collect_closes_its_source_when_it_fails() -> None:
    source = Source(1, fails_at=0)

    async def main() -> None:
        with pytest.raises(ValueError, match="source failed"):
            await collect_from_async_generator(source.items())

    run_virtual(main())
    assert source.is_closed
