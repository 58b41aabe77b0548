import asyncio

import pytest

from headrace.errors import OverloadedError
from headrace.gateway.admission.gate import Place, QueueTicket, RequestGate
from headrace.testing.virtual_time import run_virtual

ASK = QueueTicket(model="m", key="k", priority="normal")


class Places:
    """How many places there are, as a test changes it."""

    def __init__(self, number: int | None) -> None:
        self.number = number

    def __call__(self, model: str) -> int | None:
        return self.number


def gate_of(places: Places, *, max_waiting: int = 10) -> RequestGate:
    return RequestGate(places=places, max_waiting=max_waiting, ageing_s=10.0, timeout_s=30.0)


async def settle_down() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def counts(gate: RequestGate) -> tuple[int, int]:
    statistics = gate.statistics()
    return statistics.num_running, sum(statistics.num_waiting.values())


def test_a_place_goes_from_one_request_to_the_next() -> None:
    async def scenario() -> None:
        gate = gate_of(Places(1))
        first = await gate.enter(ASK)
        second = asyncio.get_running_loop().create_task(gate.enter(ASK))
        await settle_down()
        assert counts(gate) == (1, 1)
        first.give_back()
        first.give_back()
        (await second).give_back()
        assert counts(gate) == (0, 0)

    run_virtual(scenario())


def test_without_a_limit_and_without_any_endpoint_nobody_waits() -> None:
    async def scenario() -> None:
        for number in (None, 0):
            gate = gate_of(Places(number))
            places = [await gate.enter(ASK) for _ in range(5)]
            for place in places:
                place.give_back()
            assert counts(gate) == (0, 0)

    run_virtual(scenario())


def test_a_place_is_had_at_once_only_where_nobody_waits() -> None:
    async def scenario() -> None:
        places = Places(2)
        gate = gate_of(places)
        assert gate.is_open("m")
        first, second = gate.enter_now("m"), gate.enter_now("m")
        assert not gate.is_open("m")
        waits = asyncio.get_running_loop().create_task(gate.enter(ASK))
        await settle_down()
        places.number = 3
        assert not gate.is_open("m")  # who waits goes first
        gate.wake()
        for place in (first, second, await waits):
            place.give_back()
        assert gate.is_open("m")
        assert counts(gate) == (0, 0)

    run_virtual(scenario())


def test_a_full_queue_and_a_long_wait_are_told_with_a_time_to_come_back() -> None:
    async def scenario() -> None:
        gate = gate_of(Places(1), max_waiting=1)
        place = await gate.enter(ASK)
        waits = asyncio.get_running_loop().create_task(gate.enter(ASK))
        await settle_down()
        with pytest.raises(OverloadedError) as full:
            await gate.enter(ASK)
        with pytest.raises(OverloadedError) as late:
            await waits

        assert (full.value.code, late.value.code) == ("queue_full", "queue_timeout")
        assert asyncio.get_running_loop().time() == 30.0
        assert full.value.retry_after_s is not None
        assert late.value.retry_after_s is not None
        place.give_back()
        assert counts(gate) == (0, 0)

    run_virtual(scenario())


def test_who_leaves_while_waiting_frees_his_place_in_the_queue() -> None:
    async def scenario() -> None:
        gate = gate_of(Places(1))
        place = await gate.enter(ASK)
        waits = asyncio.get_running_loop().create_task(gate.enter(ASK))
        await settle_down()
        waits.cancel()
        await asyncio.wait([waits])
        assert counts(gate) == (1, 0)
        place.give_back()
        assert counts(gate) == (0, 0)

    run_virtual(scenario())


def test_who_leaves_in_the_moment_of_his_turn_passes_it_on() -> None:
    async def scenario() -> None:
        gate = gate_of(Places(1))
        loop = asyncio.get_running_loop()
        place = await gate.enter(ASK)
        leaves = loop.create_task(gate.enter(ASK))
        stays = loop.create_task(gate.enter(ASK))
        await settle_down()
        place.give_back()
        leaves.cancel()
        await asyncio.wait([leaves])
        assert leaves.cancelled()
        (await stays).give_back()
        assert counts(gate) == (0, 0)

    run_virtual(scenario())


def test_places_that_come_with_an_endpoint_are_given_out_when_woken() -> None:
    async def scenario() -> None:
        places = Places(1)
        gate = gate_of(places)
        first = await gate.enter(ASK)
        waits = asyncio.get_running_loop().create_task(gate.enter(ASK))
        await settle_down()
        places.number = 2
        gate.wake()
        second = await waits
        assert isinstance(second, Place)
        assert counts(gate) == (2, 0)
        with first, second:
            pass
        assert counts(gate) == (0, 0)

    run_virtual(scenario())
