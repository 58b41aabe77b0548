"""Four real engines behind one gateway: what it has written down is what they have done."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import httpx
import pytest

from headrace.cli.fleet import Fleet
from headrace.gateway.admission.settings import AdmissionSettings
from headrace.gateway.admission.usage_totals import ModelTotals
from headrace.gateway.app import Gateway
from headrace.gateway.settings import GatewaySettings
from tests.integration.service import DEMO_MODEL

pytestmark = [pytest.mark.slow, pytest.mark.integration, pytest.mark.timeout(300)]

START_TIMEOUT_S = 150.0
DEADLINE_S = 60.0
PROMPT_TOKENS, COMPLETION_TOKENS, ENDED = (
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:request_success_total",
)
RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
PICO = 10**12


@pytest.fixture(scope="module")
def engines() -> Iterator[tuple[str, ...]]:
    arguments = ["serve", str(DEMO_MODEL), "--host", "127.0.0.1", "--port", "0", "--cpu-threads", "1"]
    with Fleet() as fleet:
        children = [fleet.start(f"engine-{number}", arguments) for number in range(4)]
        addresses = fleet.wait_ready(children, timeout_s=START_TIMEOUT_S, on_ready=lambda _: None)
        yield tuple(address.url for address in addresses)


@asynccontextmanager
async def gateway_of(engines: tuple[str, ...]) -> AsyncIterator[Gateway]:
    settings = GatewaySettings(endpoint=engines, port=0, admin_port=None, policy="round_robin")
    async with Gateway(settings, admission=AdmissionSettings(price=("demo=3/1/5",))) as gateway:
        yield gateway


async def count(engines: tuple[str, ...], name: str) -> list[float]:
    """One metric of each engine, all its series together."""
    sums = []
    async with httpx.AsyncClient(timeout=DEADLINE_S) as client:
        for url in engines:
            lines = (await client.get(f"{url}/metrics")).text.splitlines()
            sums.append(
                sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name}{{", f"{name} ")))
            )
    return sums


async def all_idle(engines: tuple[str, ...]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while any(await count(engines, RUNNING)) or any(await count(engines, WAITING)):
            await asyncio.sleep(0.05)


def bodies(seed: int, num_requests: int) -> list[dict[str, object]]:
    choose = random.Random(seed)
    return [
        {
            "model": "demo",
            "messages": [{"role": "user", "content": f"What is {choose.randrange(9)} plus {number}?"}],
            "max_tokens": choose.randrange(1, 24),
            "temperature": 0,
            "stream": choose.random() < 0.5,
        }
        for number in range(num_requests)
    ]


async def test_the_gateways_books_are_the_engines_books(engines: tuple[str, ...]) -> None:
    names = (PROMPT_TOKENS, COMPLETION_TOKENS, ENDED)
    before = [await count(engines, name) for name in names]
    async with gateway_of(engines) as gateway, httpx.AsyncClient(base_url=gateway.url, timeout=DEADLINE_S) as client:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(client.post("/v1/chat/completions", json=body)) for body in bodies(1, 60)]
        totals = sum_of(gateway)
        done = [endpoint.load.statistics().num_done for endpoint in gateway.fleet.endpoints]
        (parity,) = gateway.parity.statistics()
    await all_idle(engines)
    after = [await count(engines, name) for name in names]

    used = [[new - old for new, old in zip(*pair, strict=True)] for pair in zip(after, before, strict=True)]
    assert {task.result().status_code for task in tasks} == {200}
    assert all(
        task.result().text.endswith("[DONE]\n\n") for task in tasks if "event-stream" in str(task.result().headers)
    )
    assert used[2] == done
    assert (totals.num_requests, totals.num_estimated) == (60, 0)
    assert totals.prompt_tokens == sum(used[0])
    assert totals.completion_tokens == sum(used[1])
    assert totals.cost == (
        3 * (totals.prompt_tokens - totals.cached_tokens) + totals.cached_tokens + 5 * totals.completion_tokens
    ) * (PICO // 10**6)
    assert (parity.num_drift, parity.num_exact > 0) == (0, True)


async def test_clients_that_leave_leave_nothing_on_any_engine(engines: tuple[str, ...]) -> None:
    ended = sum(await count(engines, ENDED))
    async with gateway_of(engines) as gateway:
        async with asyncio.TaskGroup() as group:
            for body in bodies(2, 40):
                group.create_task(leave(gateway, body | {"stream": True, "max_tokens": 1500, "ignore_eos": True}))
        async with asyncio.timeout(DEADLINE_S):
            while gateway.slots.num_taken:
                await asyncio.sleep(0.02)
        await all_idle(engines)
        statistics = [endpoint.load.statistics() for endpoint in gateway.fleet.endpoints]
        totals = sum_of(gateway)

    assert [one.num_in_flight for one in statistics] == [0] * 4
    assert sum(one.num_cancelled for one in statistics) == 40
    assert (totals.num_requests, totals.num_estimated) == (40, 40)
    assert sum(await count(engines, ENDED)) - ended == 40


async def leave(gateway: Gateway, body: dict[str, object]) -> None:
    """Ask for a long stream, and go after its first bytes."""
    async with (
        httpx.AsyncClient(timeout=DEADLINE_S) as client,
        client.stream("POST", f"{gateway.url}/v1/chat/completions", json=body) as answer,
    ):
        received = answer.aiter_bytes()  # kept: httpx closes the connection when it is collected
        await anext(received)


def sum_of(gateway: Gateway) -> ModelTotals:
    total = ModelTotals()
    for one in gateway.admission.statistics().totals.values():
        total.merge(one)
    return total
