"""A real engine publishes what it caches, the gateway follows, and what it predicts is what the engine counts."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import httpx
import pytest

from headrace.cli.fleet import Child, Fleet
from headrace.gateway.app import Gateway
from headrace.gateway.settings import GatewaySettings
from tests.integration.kv_events import caught_up, wait_for
from tests.integration.service import DEMO_MODEL, START_TIMEOUT_S

pytestmark = pytest.mark.integration
SMALL_CACHE = "1152KiB"
"""48 blocks of the demo model."""
SYSTEM = "You keep the mill. The channel carries the water to the wheel, and the wheel turns the stone. " * 3


def free_ports() -> tuple[int, int]:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        return one.getsockname()[1], two.getsockname()[1]


def start_engine(fleet: Fleet, name: str, *more: str) -> Child:
    events, replay = free_ports()
    return fleet.start(
        name,
        [
            *("serve", str(DEMO_MODEL), "--host", "127.0.0.1", "--port", "0", "--cpu-threads", "1", "--kv-events"),
            *("--kv-events-endpoint", f"tcp://*:{events}", "--kv-events-replay-endpoint", f"tcp://*:{replay}"),
            *more,
        ],
    )


@pytest.fixture(scope="module")
def engines() -> Iterator[tuple[str, str]]:
    with Fleet() as fleet:
        children = [start_engine(fleet, "engine-1"), start_engine(fleet, "engine-2")]
        one, two = fleet.wait_ready(children, timeout_s=START_TIMEOUT_S, on_ready=lambda _: None)
        yield one.url, two.url


@asynccontextmanager
async def gateway_of(*urls: str) -> AsyncIterator[Gateway]:
    async with Gateway(GatewaySettings(endpoint=urls, port=0, admin_port=None, health_interval_s=3600.0)) as gateway:
        await wait_for(lambda: gateway.routing.statistics().kv_events.num_sources == len(urls))
        yield gateway


async def chat(gateway: Gateway, *texts: str) -> tuple[httpx.Response, int, int]:
    """An answer, the cached tokens that were predicted and those that the engine counted. Then its events are in."""
    roles = ("user", "assistant")
    messages = [{"role": "system", "content": SYSTEM}]
    messages += [{"role": roles[at % 2], "content": text} for at, text in enumerate(texts)]
    body = {"messages": messages, "max_tokens": 24, "temperature": 0, "ignore_eos": True}
    async with httpx.AsyncClient(timeout=30) as client:
        answer = await client.post(f"{gateway.url}/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    await asyncio.sleep(0.3)  # the last step's events leave the engine beside its answer; nothing tells when
    await caught_up(gateway)
    details = usage["prompt_tokens_details"] or {"cached_tokens": 0}
    return answer, int(answer.headers["x-headrace-cached-tokens-predicted"]), details["cached_tokens"]


async def test_predicted_cached_tokens_are_those_of_the_engine(engines: tuple[str, str]) -> None:
    texts = ["What does the wheel turn?"]
    pairs = []
    async with gateway_of(*engines) as gateway:
        for _ in range(4):
            answer, predicted, counted = await chat(gateway, *texts)
            pairs.append((predicted, counted))
            texts += [answer.json()["choices"][0]["message"]["content"], "And then?"]
        again, *of_again = await chat(gateway, *texts[:1])

        statistics = gateway.routing.statistics()
    assert all(predicted == counted for predicted, counted in pairs), pairs
    assert of_again[0] == of_again[1] > 0
    assert again.headers["x-headrace-endpoint"] == answer.headers["x-headrace-endpoint"]
    assert all(predicted > 0 for predicted, _ in pairs[1:])
    assert (statistics.kv_events.num_unreadable, statistics.index.num_orphans) == (0, 0)


async def test_a_gateway_that_comes_later_learns_from_the_replay(engines: tuple[str, str]) -> None:
    async with gateway_of(*engines) as first:
        answer, _, _ = await chat(first, "A question that only the first gateway has seen.")
        num_known = sum(len(one.holders[0].places) for one in first.fleet.endpoints)
    async with gateway_of(*engines) as second:
        await wait_for(lambda: sum(len(one.holders[0].places) for one in second.fleet.endpoints) >= num_known)
        again, predicted, counted = await chat(second, "A question that only the first gateway has seen.")

    assert again.headers["x-headrace-endpoint"] == answer.headers["x-headrace-endpoint"]
    assert predicted == counted > 0


async def test_what_a_small_cache_evicts_is_not_predicted() -> None:
    with Fleet() as fleet:
        child = start_engine(fleet, "small", "--kv-cache-memory-bytes", SMALL_CACHE, "--max-model-len", "512")
        (engine,) = fleet.wait_ready([child], timeout_s=START_TIMEOUT_S, on_ready=lambda _: None)
        async with gateway_of(engine.url) as gateway:
            pairs = [(await chat(gateway, f"{number} " + SYSTEM))[1:] for number in (*range(8), 0, 7, 1)]
            num_places = len(gateway.fleet.endpoints[0].holders[0].places)

    assert all(predicted == counted for predicted, counted in pairs), (pairs, num_places)
    assert num_places <= 48
