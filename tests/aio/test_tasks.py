import asyncio
import gc
import logging

import pytest

from headrace.aio.tasks import TaskOwner


async def test_a_spawned_task_survives_the_garbage_collector() -> None:
    async with TaskOwner() as owner:
        may_end = asyncio.Event()
        ended = asyncio.Event()

        async def work() -> None:
            await may_end.wait()
            ended.set()

        owner.spawn(work(), name="work")
        await asyncio.sleep(0)
        gc.collect()
        may_end.set()
        await asyncio.wait_for(ended.wait(), 1)


async def test_a_task_that_ends_is_no_longer_counted() -> None:
    owner = TaskOwner()
    task = owner.spawn(asyncio.sleep(0), name="short")
    assert len(owner) == 1
    await task
    await asyncio.sleep(0)
    assert len(owner) == 0
    await owner.aclose()


async def test_an_unhandled_error_is_logged_once_with_the_name_of_the_task(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise ValueError("no such thing")

    async with TaskOwner("gateway") as owner:
        task = owner.spawn(fail(), name="probe")
        await asyncio.wait([task])
        del task
        await asyncio.sleep(0)
    gc.collect()
    records = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(records) == 1
    assert "probe" in records[0].getMessage()
    assert records[0].exc_info is not None
    assert records[0].exc_info[0] is ValueError


async def test_closing_cancels_all_tasks_and_waits_for_their_cleanup() -> None:
    cleaned_up = []

    async def work(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.001)
            cleaned_up.append(number)

    owner = TaskOwner()
    for number in range(3):
        owner.spawn(work(number), name=f"work-{number}")
    await asyncio.sleep(0)
    await owner.aclose()
    assert sorted(cleaned_up) == [0, 1, 2]
    assert len(owner) == 0


async def test_a_cancelled_task_is_not_logged_as_an_error(caplog: pytest.LogCaptureFixture) -> None:
    async with TaskOwner() as owner:
        owner.spawn(asyncio.Event().wait(), name="waits")
        await asyncio.sleep(0)
    assert not caplog.records


async def test_a_closed_owner_starts_nothing_and_leaves_no_coroutine_behind() -> None:
    owner = TaskOwner()
    await owner.aclose()
    await owner.aclose()
    with pytest.raises(RuntimeError, match="closed and starts no task 'late'"):
        owner.spawn(asyncio.sleep(0), name="late")  # an unawaited coroutine would warn, which is an error here


async def test_a_task_may_close_its_own_owner() -> None:
    owner = TaskOwner()
    other = owner.spawn(asyncio.Event().wait(), name="other")
    closer = owner.spawn(owner.aclose(), name="closer")
    await asyncio.wait_for(closer, 1)
    assert other.cancelled()


async def test_cancelling_the_close_goes_through() -> None:
    may_end = asyncio.Event()

    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await may_end.wait()

    owner = TaskOwner()
    task = owner.spawn(stubborn(), name="stubborn")
    await asyncio.sleep(0)
    closing = asyncio.create_task(owner.aclose())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    may_end.set()
    await asyncio.wait([task])
