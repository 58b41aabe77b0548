"""An endpoint fails before its client has got anything: another one answers, within bounds, or the client hears why."""

import asyncio
import socket

import pytest

from headrace.testing.fake_upstream import (
    Behaviour,
    Exchange,
    FakeUpstream,
    answers,
    completes,
    dies_at_once,
    drips,
    hangs,
    head,
    sends,
)
from tests.gateway.support import chat_request, exchange, num_in_flight, running_gateway

pytestmark = pytest.mark.integration

GARBAGE = sends(b"\x00\x01garbage\r\n\r\n")
HALF_A_HEAD = sends(b"HTTP/1.1 200 OK\r\nContent-Le")
TWO_FRAMINGS = sends(head(200, ["content-length: 3", "transfer-encoding: chunked"]))
TWO_LENGTHS = sends(head(200, ["content-length: 3", "content-length: 4"]) + b"abc")
HEAD_WITHOUT_END = sends(b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000)
FAULTS = {
    "dies": dies_at_once,
    "500": answers(500),
    "502": answers(502),
    "503": answers(503),
    "504": answers(504),
    "garbage": GARBAGE,
    "half a head": HALF_A_HEAD,
    "two framings": TWO_FRAMINGS,
    "two lengths": TWO_LENGTHS,
    "a head without end": HEAD_WITHOUT_END,
}


@pytest.mark.parametrize("behaviour", FAULTS.values(), ids=FAULTS.keys())
async def test_another_endpoint_answers_and_the_fault_is_counted(behaviour: Behaviour) -> None:
    async with (
        FakeUpstream(behaviour=behaviour) as bad,
        FakeUpstream(behaviour=completes("good")) as good,
        running_gateway(bad, good) as gateway,
    ):
        answer = await exchange(gateway, chat_request())

        assert num_in_flight(gateway) == 0
        assert [endpoint.load.statistics().num_failed for endpoint in gateway.fleet.endpoints] == [1, 0]
    assert (answer.status, answer.header("x-headrace-endpoint")) == (200, good.url)
    assert f"retry 1 after {bad.url} failed" in (answer.header("x-headrace-reason") or "")
    assert (len(bad.received), len(good.received)) == (1, 1)


async def test_a_connection_that_is_not_made_in_time_goes_to_another_endpoint() -> None:
    async with (
        FakeUpstream() as bad,
        FakeUpstream() as good,
        running_gateway(bad, good, connect_timeout_s=1.0) as gateway,
    ):
        await bad.stop()
        with deaf_socket(bad.port):
            answer = await exchange(gateway, chat_request())

        reason = gateway.fleet.endpoints[0].last_failure or ""
    assert (answer.status, answer.header("x-headrace-endpoint")) == (200, good.url)
    assert "within 1 s" in reason


@pytest.mark.parametrize("behaviour", [hangs, drips(b"HTTP/1.1 200 OK\r\nx: y")], ids=["hangs", "a head in drips"])
async def test_an_endpoint_that_begins_no_answer_in_time_is_told_and_not_tried_again(behaviour: Behaviour) -> None:
    async with (
        FakeUpstream(behaviour=behaviour) as bad,
        FakeUpstream() as other,
        running_gateway(bad, other, first_byte_timeout_s=0.2) as gateway,
    ):
        answer = await exchange(gateway, chat_request())
        await bad.wait_for(lambda: bad.num_running == 0)

    assert (answer.status, answer.error["code"], other.received) == (504, "upstream_timeout", [])


@pytest.mark.parametrize(
    ("behaviour", "status", "code"),
    [
        (dies_at_once, 503, "no_endpoint_available"),
        (GARBAGE, 502, "upstream_protocol_error"),
        (HALF_A_HEAD, 502, "upstream_protocol_error"),
        (HEAD_WITHOUT_END, 502, "upstream_protocol_error"),
    ],
)
async def test_when_there_is_no_other_endpoint_the_client_hears_why_once(
    behaviour: Behaviour, status: int, code: str
) -> None:
    async with FakeUpstream(behaviour=behaviour) as bad, running_gateway(bad) as gateway:
        answer = await exchange(gateway, chat_request())

        assert num_in_flight(gateway) == 0
    assert (answer.status, answer.error["code"], len(bad.received)) == (status, code, 1)


@pytest.mark.parametrize("status", [500, 502, 503, 504])
async def test_the_last_endpoints_answer_is_relayed_as_it_is(status: int) -> None:
    bad = answers(status, headers=["x-own: 1"], body=b"so be it")
    async with (
        FakeUpstream(behaviour=bad) as one,
        FakeUpstream(behaviour=bad) as two,
        running_gateway(one, two) as gateway,
    ):
        answer = await exchange(gateway, chat_request())

    assert (answer.status, answer.body, answer.header("x-own")) == (status, b"so be it", "1")
    assert (len(one.received), len(two.received)) == (1, 1)


async def test_a_fleet_that_fails_is_not_stormed_with_retries() -> None:
    bad = answers(503, body=b"busy")
    settings = {"retry_share": 0.5, "retry_floor": 0, "breaker_failures": 1000}
    async with (
        FakeUpstream(behaviour=bad) as one,
        FakeUpstream(behaviour=bad) as two,
        running_gateway(one, two, **settings) as gateway,
    ):
        answers_ = [await exchange(gateway, chat_request()) for _ in range(10)]

    assert [(answer.status, answer.body) for answer in answers_] == [(503, b"busy")] * 10
    assert 10 < len(one.received) + len(two.received) <= 15


async def test_a_client_that_leaves_while_its_request_waits_to_be_sent_again_leaves_nothing() -> None:
    waits_long = {"retry_delay_s": 1e6}
    async with (
        FakeUpstream(behaviour=dies_at_once) as one,
        FakeUpstream(behaviour=dies_at_once) as two,
        running_gateway(one, two, **waits_long) as gateway,
    ):
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(exchange(gateway, chat_request()))
            await one.wait_for(lambda: len(one.received) == 1)
            while num_in_flight(gateway):
                await asyncio.sleep(0)
            assert gateway.slots.num_taken == 1
            asking.cancel()
        while gateway.slots.num_taken:
            await asyncio.sleep(0)

        assert num_in_flight(gateway) == 0
    assert two.received == []


async def test_an_endpoint_that_breaks_while_many_wait_for_it_loses_none_of_them() -> None:
    async def dies_when_all_are_there(exchange_: Exchange) -> None:
        await bad.wait_for(lambda: len(bad.received) == 20)
        exchange_.die()

    async with (
        FakeUpstream(behaviour=dies_when_all_are_there) as bad,
        FakeUpstream(behaviour=completes("x")) as good,
        running_gateway(bad, good, policy="round_robin", retry_floor=20) as gateway,
        asyncio.TaskGroup() as group,
    ):
        tasks = [group.create_task(exchange(gateway, chat_request())) for _ in range(40)]

    assert {task.result().status for task in tasks} == {200}
    assert len(good.received) == 40


async def test_a_refused_connection_goes_to_another_endpoint() -> None:
    async with FakeUpstream() as bad, FakeUpstream() as good, running_gateway(bad, good) as gateway:
        await bad.stop()
        answer = await exchange(gateway, chat_request())

    assert (answer.status, answer.header("x-headrace-endpoint")) == (200, good.url)


async def test_attempts_are_bounded() -> None:
    async with (
        FakeUpstream(behaviour=dies_at_once) as one,
        FakeUpstream(behaviour=dies_at_once) as two,
        FakeUpstream(behaviour=dies_at_once) as three,
        running_gateway(one, two, three, max_attempts=2) as gateway,
    ):
        answer = await exchange(gateway, chat_request())

    assert answer.status == 503
    assert sum(len(upstream.received) for upstream in (one, two, three)) == 2


async def test_when_all_are_down_the_client_hears_why() -> None:
    async with FakeUpstream() as upstream, running_gateway(upstream) as gateway:
        await upstream.stop()
        first = await exchange(gateway, chat_request())
        await gateway.endpoints.health.probe(gateway.fleet.endpoints[0])
        await gateway.endpoints.health.probe(gateway.fleet.endpoints[0])
        second = await exchange(gateway, chat_request())
        health = await exchange(gateway, b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")

    for answer in (first, second):
        assert (answer.status, answer.error["code"]) == (503, "no_endpoint_available")
        assert "'demo'" in str(answer.error["message"])
        assert upstream.url in str(answer.error["message"])
        assert answer.header("retry-after") == "1"
    assert health.status == 503


async def test_the_last_503_is_relayed_as_it_is() -> None:
    async with (
        FakeUpstream(behaviour=answers(503, headers=["retry-after: 9"])) as upstream,
        running_gateway(upstream) as gateway,
    ):
        answer = await exchange(gateway, chat_request())

    assert (answer.status, answer.header("retry-after")) == (503, "9")
    assert answer.body == b'{"error":{"message":"no"}}'


async def test_a_stale_connection_is_replaced_without_the_client_seeing_it() -> None:
    closes_when_asked_again = completes("first")

    async def behaviour(exchange_: object) -> None:
        same = [one for one in upstream.received if one.connection == exchange_.request.connection]
        if len(same) > 1:
            exchange_.die()
        else:
            await closes_when_asked_again(exchange_)

    async with FakeUpstream(behaviour=behaviour) as upstream, running_gateway(upstream) as gateway:
        statuses = [(await exchange(gateway, chat_request())).status for _ in range(2)]

        assert gateway.fleet.endpoints[0].load.statistics().num_failed == 0
    assert statuses == [200, 200]
    assert len(upstream.received) == 3


class deaf_socket:  # noqa: N801 - reads as a context manager
    """Listens on `port` and has no room for one more connection, so that the next one gets no answer at all."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> None:
        listener = socket.create_server(("127.0.0.1", self._port), backlog=0)
        self._sockets.append(listener)
        filler = socket.create_connection(("127.0.0.1", self._port))
        self._sockets.append(filler)

    def __exit__(self, *_: object) -> None:
        for one in self._sockets:
            one.close()
