"""How the gateway finds the sources of its endpoints' events, and what it believes without them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest
import zmq.asyncio

from headrace.gateway.app import Gateway
from headrace.gateway.kv_events.monitor import KvEventMonitor
from headrace.testing.fake_upstream import FakeUpstream
from headrace.tokenization.byte_tokenizer import ByteTokenizer
from tests.gateway.routing.test_kv_event_subscription import Publisher, stored
from tests.gateway.support import exchange, running_gateway

pytestmark = pytest.mark.integration
PROMPT = "The wheel turns the stone."
IDS = ByteTokenizer().encode_batch([PROMPT], add_special_tokens=True)[0].tolist()
NUM_BLOCKS = len(IDS) // 2


async def wait_for(is_so: Callable[[], bool]) -> None:
    """For what comes through ZMQ's thread."""
    async with asyncio.timeout(20):
        while not is_so():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def publishing(number: int) -> AsyncIterator[list[Publisher]]:
    with zmq.asyncio.Context() as context:
        publishers = [Publisher(context) for _ in range(number)]
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(publisher.answer_replays()) for publisher in publishers]
        try:
            yield publishers
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            for publisher in publishers:
                publisher.close()


def sources_of(publishers: list[Publisher]) -> dict[str, dict[str, object]]:
    return {
        str(rank): {"endpoint": one.source.publish, "replay_endpoint": one.source.replay, "publisher": "zmq"}
        for rank, one in enumerate(publishers)
    }


def monitor_of(gateway: Gateway) -> KvEventMonitor:
    monitor = gateway.routing._monitor
    assert monitor is not None
    return monitor


async def predicted(gateway: Gateway) -> int:
    gateway.tokenization.register("demo", ByteTokenizer())
    body = msgspec.json.encode({"model": "demo", "prompt": IDS})
    request = b"POST /v1/completions HTTP/1.1\r\nHost: g\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    answer = await exchange(gateway, request)
    return int(answer.header("x-headrace-cached-tokens-predicted") or -1)


async def test_an_endpoint_that_is_asked_tells_its_ranks_and_its_block_size() -> None:
    async with publishing(2) as publishers:
        publishers[1].make(stored(*range(NUM_BLOCKS), tokens=IDS[: 2 * NUM_BLOCKS]))
        upstream = FakeUpstream(kv_event_sources=sources_of(publishers))
        async with upstream, running_gateway(upstream) as gateway:
            (endpoint,) = gateway.fleet.endpoints
            await wait_for(lambda: endpoint.block_size == 2)
            num_predicted = await predicted(gateway)

            assert [holder.has_events for holder in endpoint.holders] == [True, True]
    assert num_predicted == (len(IDS) - 1) // 2 * 2


async def test_an_endpoint_that_publishes_no_more_is_believed_no_more() -> None:
    async with publishing(2) as publishers:
        publishers[0].make(stored(*range(NUM_BLOCKS), tokens=IDS[: 2 * NUM_BLOCKS]))
        upstream = FakeUpstream(kv_event_sources=sources_of(publishers))
        async with upstream, running_gateway(upstream) as gateway:
            (endpoint,) = gateway.fleet.endpoints
            await wait_for(lambda: endpoint.block_size == 2)
            upstream.kv_event_sources = {}
            await monitor_of(gateway).look(endpoint)
            num_predicted = await predicted(gateway)

            assert [holder.has_events for holder in endpoint.holders] == [False]
            assert gateway.routing.statistics().kv_events.num_sources == 0
    assert num_predicted == 0


async def test_a_configured_source_is_followed_without_asking() -> None:
    async with publishing(1) as (publisher,), FakeUpstream() as upstream:
        publisher.make(stored(*range(NUM_BLOCKS), tokens=IDS[: 2 * NUM_BLOCKS]))
        source = f"{upstream.url}={publisher.source.publish},{publisher.source.replay}"
        async with running_gateway(upstream, kv_event_source=(source,), kv_events="off") as gateway:
            (endpoint,) = gateway.fleet.endpoints
            await wait_for(lambda: endpoint.block_size == 2)

            assert await predicted(gateway) > 0


@pytest.mark.parametrize(
    "told", [{"0": {"endpoint": "inproc://x"}}, {"one": {}}, {"0": {"endpoint": "tcp://*:0"}}], ids=str
)
async def test_an_endpoint_that_tells_nonsense_is_routed_to_all_the_same(told: dict[str, dict[str, object]]) -> None:
    async with FakeUpstream(kv_event_sources=told) as upstream, running_gateway(upstream) as gateway:
        await monitor_of(gateway).look(gateway.fleet.endpoints[0])

        assert await predicted(gateway) == 0
        assert gateway.routing.statistics().kv_events.num_sources == 0


async def test_closing_the_gateway_leaves_no_task_and_no_socket() -> None:
    async with publishing(1) as (publisher,):
        upstream = FakeUpstream(kv_event_sources=sources_of([publisher]))
        async with upstream:
            async with running_gateway(upstream) as gateway:
                monitor = monitor_of(gateway)
                await wait_for(lambda: monitor.statistics().num_sources == 1)
            num_tasks = len(monitor._owner)

    assert num_tasks == 0
    assert monitor._context is None
