"""What the gateway has written down of many requests, half of which go wrong, is what the engines have done."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.gateway.admission.key_file import KeyEntry, hash_text, write_entries
from headrace.gateway.admission.keys import digest_of
from headrace.gateway.admission.settings import AdmissionSettings
from headrace.gateway.admission.usage_totals import ModelTotals
from headrace.gateway.app import Gateway
from headrace.testing.counting_engine import Books, CountingEngine, Fate, Tally
from headrace.testing.fake_upstream import FakeUpstream
from tests.gateway.support import chat_request, num_in_flight, raw_client, running_gateway, settled

pytestmark = pytest.mark.integration

KEYS = ("hr-alice", "hr-bob", "hr-carol")
NUM_ENGINES = 4
NUM_REQUESTS = 200
PROMPT, CACHED, COMPLETION = 3_000_000, 1_000_000, 5_000_000
"""Picodollars for one token."""
PRICE = ("demo=3/1/5",)
FATES = [Fate.WHOLE] * 8 + [Fate.BREAKS] * 2 + [Fate.DIES, Fate.FAILS, Fate.BUSY, Fate.REFUSES, Fate.GARBAGE]


@dataclass(frozen=True)
class Plan:
    """One client: what it asks, and after how many tokens of its stream it leaves, if it does."""

    key: str
    body: bytes
    leaves_after: int | None


def plan_of(choose: random.Random) -> Plan:
    topic = choose.randrange(6)
    ids = [topic] * (16 * choose.randrange(1, 5)) + [choose.randrange(1000) for _ in range(choose.randrange(1, 40))]
    body: dict[str, object] = {"model": "demo", "prompt": ids, "max_tokens": choose.randrange(1, 12)}
    leaves_after = None
    if choose.random() < 0.5:
        body["stream"] = True
        if choose.random() < 0.3:
            leaves_after = body["stops_after"] = choose.randrange(0, int(str(body["max_tokens"])) + 1)
    return Plan(key=choose.choice(KEYS), body=json.dumps(body).encode(), leaves_after=leaves_after)


async def live(gateway: Gateway, plan: Plan, *, is_there: Callable[[bytes], Awaitable[None]]) -> int | None:
    """One client's life: the status that it got, or None if it left."""
    extra = f"Authorization: Bearer {plan.key}\r\n"
    async with raw_client(gateway) as client:
        await client.send(chat_request(plan.body, extra=extra, path="/v1/completions"))
        if plan.leaves_after is None:
            return (await client.read_answer()).status
        if plan.leaves_after == 0:
            await is_there(plan.body)
        else:
            await client.read_head()
            told = b""
            while told.count(b"\n\n") < plan.leaves_after:
                told += await client.read_chunk()
        return None


async def counters(gateway: Gateway) -> Callable[[str], int]:
    """Sums of the gateway's metrics by name, over all labels."""
    async with httpx.AsyncClient(verify=False) as client:  # no TLS here, whose context takes a tenth of a second
        text = (await client.get(f"{gateway.admin_url}/metrics")).text
    sums: Counter[str] = Counter()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            sums[sample.name] += int(sample.value)
    return lambda name: sums[f"headrace_gateway_{name}_total"]


def merged(books: list[Books], which: Callable[[Books], list[Tally]]) -> Tally:
    total = Tally()
    for tally in (tally for one in books for tally in which(one)):
        total.num_requests += tally.num_requests
        total.prompt_tokens += tally.prompt_tokens
        total.cached_tokens += tally.cached_tokens
        total.completion_tokens += tally.completion_tokens
    return total


def keys_file(path: Path) -> str:
    file = path / "keys.yaml"
    entries = [KeyEntry(name=key, hash=hash_text(digest_of(key.encode()))) for key in KEYS]
    write_entries(file, entries)
    return str(file)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 8))])
async def test_the_gateways_books_are_the_engines_books(tmp_path: Path, seed: int) -> None:
    choose = random.Random(seed)
    plans = [plan_of(choose) for _ in range(NUM_REQUESTS)]
    engines = [CountingEngine(draw=lambda: choose.choice(FATES)) for _ in range(NUM_ENGINES)]
    admission = AdmissionSettings(keys_file=keys_file(tmp_path), price=PRICE)
    log = tmp_path / "decisions.jsonl"
    async with AsyncExitStack() as stack:
        upstreams = [await stack.enter_async_context(FakeUpstream(behaviour=engine)) for engine in engines]
        gateway = await stack.enter_async_context(
            running_gateway(
                *upstreams, admission=admission, breaker_failures=10**6, decision_log=str(log), admin_port=0
            )
        )
        statuses = await live_all(gateway, plans, upstreams)
        await settled(gateway)
        for upstream in upstreams:
            await upstream.wait_for(lambda one=upstream: one.num_running == 0)
        loads = [endpoint.load.statistics() for endpoint in gateway.fleet.endpoints]
        resent = [endpoint.pool.statistics().num_resent for endpoint in gateway.fleet.endpoints]
        count = await counters(gateway)
        totals = list(gateway.admission.statistics().totals.values())
        left_over = (num_in_flight(gateway), gateway.slots.num_taken, gateway.admission._local.num_open())
        held = gateway.server.statistics().num_held_body_bytes
    decisions = [json.loads(line) for line in log.read_text().splitlines()]

    books = [engine.books for engine in engines]
    num_left = sum(plan.leaves_after is not None for plan in plans)
    whole = merged(books, lambda one: [one.whole])
    used = merged(books, lambda one: [one.whole, one.broken, one.left])
    uncounted = merged(books, lambda one: [one.broken, one.left])
    # every request ended exactly once, and nothing of it is left
    assert (left_over, held) == ((0, 0, 0), 0)
    assert count("requests") == NUM_REQUESTS - num_left == sum(status is not None for status in statuses)
    assert count("client_disconnects") == num_left == merged(books, lambda one: [one.left]).num_requests
    assert statuses.count(200) == whole.num_requests + merged(books, lambda one: [one.broken]).num_requests
    # every attempt is one that an engine knows of
    attempts = [load.num_done + load.num_failed + load.num_cancelled for load in loads]
    assert [one.num_received for one in books] == [one.num_ended for one in books]
    assert [sent + again for sent, again in zip(attempts, resent, strict=True)] == [one.num_ended for one in books]
    assert count("attempts") == sum(attempts) - num_left
    assert count("retries") == sum(attempts) - NUM_REQUESTS
    # what engines told is counted; what they could not tell is estimated; what failed costs nothing
    assert count("prompt_tokens") == whole.prompt_tokens
    assert count("completion_tokens") == whole.completion_tokens
    assert count("cached_prompt_tokens") == whole.cached_tokens
    assert count("broken_answers") == merged(books, lambda one: [one.broken]).num_requests
    bill = total_of(totals)
    assert count("bills") == NUM_REQUESTS
    assert bill.num_requests == used.num_requests
    assert bill.num_estimated == uncounted.num_requests
    assert bill.prompt_tokens == used.prompt_tokens
    assert bill.completion_tokens == used.completion_tokens
    assert bill.cached_tokens == whole.cached_tokens
    assert bill.cost == (
        PROMPT * (used.prompt_tokens - whole.cached_tokens)
        + CACHED * whole.cached_tokens
        + COMPLETION * used.completion_tokens
    )
    # the decision log has each request that was answered, once
    assert len({one["request_id"] for one in decisions}) == len(decisions)
    assert sum(one["output_length"] for one in decisions) == whole.completion_tokens


async def live_all(gateway: Gateway, plans: list[Plan], upstreams: list[FakeUpstream]) -> list[int | None]:
    """All clients, some at a time."""
    places = asyncio.Semaphore(24)

    async def is_there(body: bytes) -> None:
        marked = json.loads(body)["prompt"]
        while not any(one.json()["prompt"] == marked for upstream in upstreams for one in upstream.received):
            await asyncio.sleep(0.001)

    async def live_in_turn(plan: Plan) -> int | None:
        async with places:
            return await live(gateway, plan, is_there=is_there)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(live_in_turn(plan)) for plan in plans]
    return [task.result() for task in tasks]


def total_of(totals: list[ModelTotals]) -> ModelTotals:
    total = ModelTotals()
    for one in totals:
        total.merge(one)
    return total
