"""Texts are encoded in the loop as far as its round has room; the others wait, in order, or are sent away."""

import asyncio

from headrace.tokenization.in_place import InPlace


async def test_what_does_not_fit_into_a_round_waits_for_a_later_one_in_order() -> None:
    place = InPlace(budget_s=0.001, max_chars=4096)
    place.spend(0, took_s=0.001)
    assert not place.fits(1)
    tasks = [asyncio.create_task(place.turn(1000)) for _ in range(20)]
    order: list[int] = []
    for number, task in enumerate(tasks):
        task.add_done_callback(lambda _, number=number: order.append(number))  # type: ignore[misc]
    assert all(await asyncio.gather(*tasks))
    assert order == sorted(order)
    assert len(place) == 0


async def test_a_new_round_has_room_again_and_tells_that_the_last_one_ended() -> None:
    rounds: list[int] = []
    place = InPlace(budget_s=0.001, max_chars=4096, on_round_end=lambda: rounds.append(1))
    place.spend(1000, took_s=0.002)
    assert not place.fits(1000)
    await asyncio.sleep(0)
    assert place.fits(1000)
    assert rounds == [1]


async def test_a_caller_that_left_is_passed_over() -> None:
    place = InPlace(budget_s=0.001, max_chars=4096)
    place.spend(0, took_s=0.002)
    gone, stays = (asyncio.ensure_future(place.turn(1000)) for _ in range(2))
    gone.get_loop().call_soon(gone.cancel)
    assert await stays
    assert gone.cancelled()


async def test_what_would_never_fit_or_wait_too_long_is_sent_away_at_once() -> None:
    assert not await InPlace(budget_s=0, max_chars=4096).turn(1)
    place = InPlace(budget_s=0.001, max_chars=4096)
    assert not place.fits(4097)
    assert not await place.turn(4097)
    waiting = [asyncio.ensure_future(place.turn(4000)) for _ in range(2000)]
    answers = await asyncio.gather(*waiting)
    assert answers.count(False) > 1000
    assert answers.index(False) > 100


async def test_who_waits_is_let_go_however_much_others_take_without_waiting() -> None:
    place = InPlace(budget_s=0.001, max_chars=4096)
    place.spend(0, took_s=0.002)
    waiting = asyncio.ensure_future(place.turn(4000))
    for _ in range(10):
        place.spend(4000, took_s=0.002)
        await asyncio.sleep(0)
    assert waiting.done()
