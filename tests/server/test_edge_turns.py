"""Work that holds the loop is spread over its rounds."""

import asyncio

import pytest

from headrace.server.turns import Turns


async def test_no_more_go_on_in_a_round_than_may_and_all_in_order() -> None:
    turns = Turns(per_round=2)
    passed: list[int] = []
    rounds: list[int] = []

    async def caller(number: int) -> None:
        await turns.take()
        passed.append(number)

    async with asyncio.TaskGroup() as group:
        for number in range(9):
            group.create_task(caller(number))
        while len(passed) < 9:
            before = len(passed)
            await asyncio.sleep(0)
            rounds.append(len(passed) - before)
    assert passed == list(range(9))
    assert max(rounds) == 2


async def test_a_turn_in_an_idle_loop_is_taken_at_once() -> None:
    turns = Turns(per_round=1)
    for _ in range(3):
        taking = turns.take()
        with pytest.raises(StopIteration):
            taking.send(None)  # never suspended
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def test_who_is_cancelled_holds_up_nobody_behind() -> None:
    turns = Turns(per_round=1)
    await turns.take()
    waiting = [asyncio.create_task(turns.take()) for _ in range(3)]
    await asyncio.sleep(0)
    assert not waiting[1].done()
    waiting[1].cancel()
    async with asyncio.timeout(5):
        await waiting[0]
        await waiting[2]
    assert waiting[1].cancelled()
    assert repr(turns) == "Turns(1 per round, 0 waiting)"
