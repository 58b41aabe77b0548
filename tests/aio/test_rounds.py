"""RoundBatch: everybody of a round in one go, each with his own result, error or way out."""

import asyncio

import pytest

from headrace.aio.rounds import RoundBatch
from headrace.errors import HeadraceError
from headrace.testing.tokenizers import PanicError


def test_callers_of_one_round_are_done_one_right_after_the_other() -> None:
    log: list[str] = []

    def do(item: str) -> str:
        log.append(f"do {item}")
        return item.upper()

    async def caller(batch: RoundBatch[str, str], item: str) -> str:
        log.append(f"ask {item}")
        result = await batch(item)
        log.append(f"got {item}")
        return result

    async def main() -> list[str]:
        batch = RoundBatch(do)
        return await asyncio.gather(*(caller(batch, item) for item in "abc"))

    assert asyncio.run(main()) == ["A", "B", "C"]
    assert log == [f"{step} {item}" for step in ("ask", "do", "got") for item in "abc"]


def test_an_error_goes_to_its_own_caller() -> None:
    async def main() -> list[object]:
        batch = RoundBatch(lambda item: 6 // item)
        return await asyncio.gather(*(batch(item) for item in (1, 0, 2)), return_exceptions=True)

    first, second, third = asyncio.run(main())
    assert (first, third) == (6, 3)
    assert isinstance(second, ZeroDivisionError)


@pytest.mark.parametrize("fault", [PanicError("of a library in Rust"), StopIteration()])
def test_what_is_no_ordinary_error_leaves_nobody_waiting(fault: BaseException) -> None:
    def do(item: int) -> int:
        if item == 1:
            raise fault
        return item

    async def main() -> list[object]:
        batch = RoundBatch(do)
        async with asyncio.timeout(20):
            return await asyncio.gather(*(batch(item) for item in (0, 1, 2)), return_exceptions=True)

    first, second, third = asyncio.run(main())
    assert (first, third) == (0, 2)
    assert isinstance(second, HeadraceError)
    assert second.__cause__ is fault


@pytest.mark.parametrize("leaves_after_it_was_done", [False, True])
def test_a_caller_that_leaves_is_passed_over_and_leaves_nothing(leaves_after_it_was_done: bool) -> None:
    done: list[int] = []

    def do(item: int) -> int:
        done.append(item)
        if leaves_after_it_was_done and item == 0:
            tasks[1].cancel()  # between its result and its waking
        return item

    tasks: list[asyncio.Task[int]] = []

    async def main() -> None:
        batch = RoundBatch(do)
        tasks.extend(asyncio.ensure_future(batch(item)) for item in (1, 0, 2))
        tasks.insert(0, tasks.pop(1))  # tasks[i] asks for i
        await asyncio.sleep(0)
        assert len(batch) == 3
        if not leaves_after_it_was_done:
            tasks[1].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert (results[0], results[2]) == (0, 2)
        assert isinstance(results[1], asyncio.CancelledError)
        assert len(batch) == 0

    asyncio.run(main())
    assert done == ([1, 0, 2] if leaves_after_it_was_done else [0, 2])


def test_who_asks_while_others_are_done_is_done_in_the_next_round() -> None:
    async def main() -> None:
        later: list[asyncio.Task[int]] = []

        def do(item: int) -> int:
            if item == 1:
                later.append(asyncio.ensure_future(batch(2)))
            return item

        batch = RoundBatch(do)
        assert await batch(1) == 1
        assert await later[0] == 2
        assert await batch(3) == 3, "and it goes on after an idle time"

    asyncio.run(main())
