"""What speaks against an endpoint, how it is left alone, and how it comes back."""

import asyncio
import time

import pytest

from headrace.breaker import BreakerState
from headrace.gateway.app import Gateway
from headrace.testing.fake_upstream import (
    Behaviour,
    FakeUpstream,
    answers,
    completes,
    dies_after,
    dies_at_once,
    hangs,
    sends,
    streams,
)
from tests.gateway.support import chat_request, exchange, num_in_flight, raw_client, running_gateway, settled

pytestmark = pytest.mark.integration


async def test_a_429_is_the_clients_business() -> None:
    async with (
        FakeUpstream(behaviour=answers(429, headers=["retry-after: 7"])) as bad,
        FakeUpstream() as other,
        running_gateway(bad, other) as gateway,
    ):
        answer = await exchange(gateway, chat_request())

    assert (answer.status, answer.header("retry-after"), other.received) == (429, "7", [])


AGAINST = {
    "dies": dies_at_once,
    "500": answers(500),
    "502": answers(502),
    "503": answers(503),
    "504": answers(504),
    "garbage": sends(b"\x00\x01garbage\r\n\r\n"),
    "half a head": sends(b"HTTP/1.1 200 OK\r\nContent-Le"),
}


@pytest.mark.parametrize("behaviour", AGAINST.values(), ids=AGAINST.keys())
async def test_failures_in_a_row_keep_requests_away_until_the_pause_is_over(behaviour: Behaviour) -> None:
    async with (
        FakeUpstream(behaviour=behaviour) as bad,
        FakeUpstream(behaviour=streams(["a"])) as good,
        running_gateway(bad, good, breaker_failures=2, breaker_pause_s=3600) as gateway,
    ):
        for _ in range(10):
            assert (await exchange(gateway, chat_request())).status == 200

    assert (len(bad.received), len(good.received)) == (2, 10)


async def test_a_stream_that_tries_a_broken_endpoint_lets_others_in_as_soon_as_it_begins() -> None:
    gate = asyncio.Semaphore(1)
    async with (
        FakeUpstream(behaviour=dies_at_once) as upstream,
        running_gateway(upstream, breaker_failures=1, breaker_pause_s=0.001) as gateway,
    ):
        assert (await exchange(gateway, chat_request())).status == 503
        upstream.behaviour = streams(["a", "b"], gate=gate)
        while not gateway.fleet.candidates("demo", now=time.monotonic()):
            await asyncio.sleep(0)
        async with raw_client(gateway) as trial:
            await trial.send(chat_request())
            await trial.read_head()
            upstream.behaviour = completes("x")
            answer = await exchange(gateway, chat_request())

    assert answer.status == 200


NOT_AGAINST = {
    "400": answers(400),
    "404": answers(404),
    "429": answers(429, headers=["retry-after: 7"]),
    "501": answers(501),
    "503 that asks to wait": answers(503, headers=["retry-after: 7"]),
}


@pytest.mark.parametrize("behaviour", NOT_AGAINST.values(), ids=NOT_AGAINST.keys())
async def test_what_is_no_fault_of_the_endpoint_does_not_open_its_breaker(behaviour: Behaviour) -> None:
    async with FakeUpstream(behaviour=behaviour) as upstream, running_gateway(upstream, breaker_failures=1) as gateway:
        for _ in range(3):
            await exchange(gateway, chat_request())

        (endpoint,) = gateway.fleet.endpoints
        assert (endpoint.breaker.num_opened, endpoint.load.statistics().num_failed) == (0, 0)
    assert len(upstream.received) == 3


@pytest.mark.parametrize("behaviour", [dies_after("a"), answers(500)], ids=["dies in the middle", "500"])
async def test_a_fault_of_the_only_endpoint_opens_its_breaker_too(behaviour: Behaviour) -> None:
    async with (
        FakeUpstream(behaviour=behaviour) as upstream,
        running_gateway(upstream, breaker_failures=2, breaker_pause_s=3600) as gateway,
    ):
        for _ in range(2):
            await exchange(gateway, chat_request())
        answer = await exchange(gateway, chat_request())

    assert (answer.status, answer.error["code"]) == (503, "no_endpoint_available")
    assert "circuit breaker open" in str(answer.error["message"])
    assert len(upstream.received) == 2


async def test_a_client_that_leaves_says_nothing_about_its_endpoint() -> None:
    async with FakeUpstream(behaviour=hangs) as upstream, running_gateway(upstream, breaker_failures=1) as gateway:
        async with raw_client(gateway) as client:
            await client.send(chat_request())
            await upstream.wait_for(lambda: upstream.num_running == 1)
        await settled(gateway)

        assert gateway.fleet.endpoints[0].breaker.num_opened == 0


async def half_open(gateway: Gateway) -> None:
    """Break the only endpoint, and wait until its pause is over."""
    assert (await exchange(gateway, chat_request())).status == 503
    (endpoint,) = gateway.fleet.endpoints
    while endpoint.breaker.state(time.monotonic()) is not BreakerState.HALF_OPEN:
        await asyncio.sleep(0)


async def test_half_open_one_single_request_goes_out_to_try() -> None:
    async with (
        FakeUpstream(behaviour=dies_at_once) as upstream,
        running_gateway(upstream, breaker_failures=1, breaker_pause_s=0.001) as gateway,
    ):
        await half_open(gateway)
        upstream.behaviour = hangs
        async with raw_client(gateway) as trial:
            await trial.send(chat_request())
            await upstream.wait_for(lambda: upstream.num_running == 1)
            others = [await exchange(gateway, chat_request()) for _ in range(3)]

    assert [answer.status for answer in others] == [503] * 3
    assert len(upstream.received) == 2


async def test_a_trial_whose_client_leaves_makes_room_for_the_next() -> None:
    async with (
        FakeUpstream(behaviour=dies_at_once) as upstream,
        running_gateway(upstream, breaker_failures=1, breaker_pause_s=0.001) as gateway,
    ):
        await half_open(gateway)
        upstream.behaviour = hangs
        async with raw_client(gateway) as trial:
            await trial.send(chat_request())
            await upstream.wait_for(lambda: upstream.num_running == 1)
        while num_in_flight(gateway):
            await asyncio.sleep(0)
        upstream.behaviour = completes("x")
        answers_ = [await exchange(gateway, chat_request()) for _ in range(3)]

        assert gateway.fleet.endpoints[0].breaker.state(time.monotonic()) is BreakerState.CLOSED
    assert [answer.status for answer in answers_] == [200] * 3


async def test_a_trial_that_is_answered_with_500_opens_the_breaker_again() -> None:
    async with (
        FakeUpstream(behaviour=dies_at_once) as upstream,
        running_gateway(upstream, breaker_failures=1, breaker_pause_s=0.001) as gateway,
    ):
        await half_open(gateway)
        upstream.behaviour = answers(500)
        await exchange(gateway, chat_request())

        assert gateway.fleet.endpoints[0].breaker.num_opened == 2
