"""Leaving a block when something happens elsewhere."""

import asyncio

import pytest

from headrace.server.cut import leave_when


async def test_a_block_that_ends_first_is_not_cut() -> None:
    never = asyncio.Event()
    async with leave_when(never.wait, name="never") as cut:
        await asyncio.sleep(0)
    assert not cut.happened
    assert len(asyncio.all_tasks()) == 1


async def test_a_block_is_cut_where_it_waits_and_its_cleanup_runs() -> None:
    happened = asyncio.Event()
    cleaned = False
    async with leave_when(happened.wait, name="event") as cut:
        try:
            happened.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned = True
    assert cut.happened
    assert cleaned
    assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]


async def test_what_the_block_raises_goes_through() -> None:
    with pytest.raises(TimeoutError, match="its own"):
        async with leave_when(asyncio.Event().wait, name="never"):
            raise TimeoutError("its own")


async def test_a_cancellation_from_outside_goes_through() -> None:
    is_inside = asyncio.Event()

    async def block() -> None:
        async with leave_when(asyncio.Event().wait, name="never"):
            is_inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(block())
    await is_inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(asyncio.all_tasks()) == 1
