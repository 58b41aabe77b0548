"""Keys, limits, prices and queues as clients meet them: a gateway on a real socket, in front of fake engines."""

import asyncio
import json
from decimal import Decimal
from pathlib import Path

import httpx
import pytest

from headrace.gateway.admission.key_file import KeyEntry, hash_text, write_entries
from headrace.gateway.admission.keys import digest_of
from headrace.gateway.admission.settings import AdmissionSettings
from headrace.gateway.app import Gateway
from headrace.testing.fake_upstream import (
    DONE,
    Exchange,
    FakeUpstream,
    Received,
    answers,
    chunk_event,
    completes,
    dies_after,
    dies_at_once,
    hangs,
    streams,
    usage_event,
    usage_of,
)
from tests.gateway.support import RawAnswer, chat_body, chat_request, exchange, raw_client, running_gateway, settled

pytestmark = pytest.mark.integration

ALICE, BOB = "hr-alice", "hr-bob"
PRICE = ("demo=1/0.5/2",)


def auth(key: str, *more: str) -> str:
    return "".join(f"{line}\r\n" for line in (f"Authorization: Bearer {key}", *more))


def keys_file(path: Path, **limits: object) -> str:
    """A file with alice, who has `limits`, and bob, who has none."""
    file = path / "keys.yaml"
    write_entries(file, [entry("alice", ALICE, **limits), entry("bob", BOB)])
    return str(file)


def entry(name: str, key: str, **limits: object) -> KeyEntry:
    return KeyEntry(name=name, hash=hash_text(digest_of(key.encode())), **limits)


async def ask(gateway: Gateway, key: str = ALICE, *more: str, **fields: object) -> RawAnswer:
    return await exchange(gateway, chat_request(chat_body(**fields), extra=auth(key, *more)))


async def usage_of_key(gateway: Gateway, key: str = ALICE) -> dict:
    answer = await exchange(gateway, f"GET /v1/usage HTTP/1.1\r\nHost: g\r\n{auth(key)}\r\n".encode())
    assert answer.status == 200
    return json.loads(answer.body, parse_float=Decimal)


def requests_of(upstream: FakeUpstream) -> list[Received]:
    """What came of clients, the gateway's own questions left out."""
    return [received for received in upstream.received if received.method == "POST"]


def held(gateway: Gateway) -> int:
    return gateway.admission._local.num_open()


async def test_without_keys_the_gateway_is_open_and_still_counts() -> None:
    async with FakeUpstream() as upstream, running_gateway(upstream) as gateway:
        answer = await exchange(gateway, chat_request(extra=auth("whatever")))
        usage = await usage_of_key(gateway)

    assert answer.status == 200
    assert requests_of(upstream)[-1].header("authorization") == "Bearer whatever"
    assert (usage["key"], usage["total"]["prompt_tokens"], usage["total"]["cost"]) == ("anonymous", 3, 0)


@pytest.mark.parametrize("extra", ["", auth("hr-eve"), "x-api-key: hr-eve\r\n", "Authorization: Basic aHI=\r\n"])
async def test_a_request_without_a_known_key_reaches_no_endpoint(tmp_path: Path, extra: str) -> None:
    admission = AdmissionSettings(keys_file=keys_file(tmp_path))
    async with FakeUpstream() as upstream, running_gateway(upstream, admission=admission) as gateway:
        answer = await exchange(gateway, chat_request(extra=extra))
        models = await exchange(gateway, f"GET /v1/models HTTP/1.1\r\nHost: g\r\n{extra}\r\n".encode())
        health = await exchange(gateway, b"GET /health HTTP/1.1\r\nHost: g\r\n\r\n")

    assert (answer.status, answer.error["code"], answer.error["type"]) == (
        401,
        "invalid_api_key",
        "authentication_error",
    )
    assert "hr-eve" not in str(answer.error["message"])
    assert (models.status, health.status) == (401, 200)
    assert requests_of(upstream) == []


async def test_a_key_opens_and_goes_no_further(tmp_path: Path) -> None:
    admission = AdmissionSettings(keys_file=keys_file(tmp_path))
    async with FakeUpstream() as upstream, running_gateway(upstream, admission=admission) as gateway:
        bearer = await ask(gateway)
        other = await exchange(gateway, chat_request(extra=f"X-Api-Key: {BOB}\r\n"))

    assert (bearer.status, other.status) == (200, 200)
    assert all(one.header("authorization") is None and one.header("x-api-key") is None for one in requests_of(upstream))


async def test_a_key_sees_and_uses_its_models_only(tmp_path: Path) -> None:
    admission = AdmissionSettings(keys_file=keys_file(tmp_path, models=["other"]))
    async with (
        FakeUpstream() as one,
        FakeUpstream(model="other") as two,
        running_gateway(one, two, admission=admission) as gateway,
    ):
        refused = await ask(gateway)
        listing = await exchange(gateway, f"GET /v1/models HTTP/1.1\r\nHost: g\r\n{auth(ALICE)}\r\n".encode())
        hidden = await exchange(gateway, f"GET /v1/models/demo HTTP/1.1\r\nHost: g\r\n{auth(ALICE)}\r\n".encode())

    assert (refused.status, refused.error["code"]) == (403, "model_not_allowed")
    assert [card["id"] for card in json.loads(listing.body)["data"]] == ["other"]
    assert hidden.status == 404
    assert requests_of(one) == []


async def test_requests_over_the_rate_are_told_when_to_come_back(tmp_path: Path) -> None:
    admission = AdmissionSettings(keys_file=keys_file(tmp_path, requests_per_minute=2))
    async with FakeUpstream() as upstream, running_gateway(upstream, admission=admission) as gateway:
        first, second, third = [await ask(gateway) for _ in range(3)]
        other = await ask(gateway, BOB)

    assert [first.header(f"x-ratelimit-{what}-requests") for what in ("limit", "remaining")] == ["2", "1"]
    assert second.header("x-ratelimit-remaining-requests") == "0"
    assert (third.status, third.error["code"], third.error["type"]) == (429, "rate_limit_exceeded", "rate_limit_error")
    assert 1 <= int(third.header("retry-after") or 0) <= 30
    assert third.header("x-ratelimit-remaining-requests") == "0"
    assert other.status == 200
    assert other.header("x-ratelimit-limit-requests") is None
    assert len(requests_of(upstream)) == 3


async def test_tokens_are_held_at_their_most_and_corrected_by_the_usage(tmp_path: Path) -> None:
    admission = AdmissionSettings(keys_file=keys_file(tmp_path, tokens_per_minute=1000))
    answer = completes("x", prompt_tokens=10, completion_tokens=20)
    async with FakeUpstream(behaviour=answer) as upstream, running_gateway(upstream, admission=admission) as gateway:
        first = await ask(gateway, max_tokens=900)
        usage = await usage_of_key(gateway)
        second = await ask(gateway, max_tokens=900)
        hopeless = await ask(gateway, max_tokens=1000)

    assert int(first.header("x-ratelimit-remaining-tokens") or 0) < 100
    assert 970 <= usage["limits"]["tokens_per_minute"]["remaining"] <= 971
    assert second.status == 200
    assert hopeless.status == 429
    assert hopeless.header("retry-after") is None
    assert "lower max_tokens" in str(hopeless.error["message"])


async def test_a_long_stream_without_a_limit_is_charged_for_each_event_when_its_client_leaves(tmp_path: Path) -> None:
    async def behaviour(exchange: Exchange) -> None:
        await exchange.start_chunked()
        for _ in range(30):
            await exchange.chunk(chunk_event("x"))
        await hangs(exchange)

    admission = AdmissionSettings(keys_file=keys_file(tmp_path), default_completion_tokens=5)
    async with FakeUpstream(behaviour=behaviour) as upstream, running_gateway(upstream, admission=admission) as gateway:
        for fields in ({}, {"max_tokens": 20}):
            async with raw_client(gateway) as client:
                await client.send(chat_request(chat_body(stream=True, **fields), extra=auth(ALICE)))
                await client.read_head()
                num_events = 0
                while num_events < 30:
                    num_events += (await client.read_chunk()).count(b"data:")
            await settled(gateway)
        usage = await usage_of_key(gateway)

    assert (usage["total"]["num_estimated"], usage["total"]["completion_tokens"]) == (2, 30 + 20)


async def test_a_request_from_before_a_change_of_the_budgets_leaves_what_was_spent_alone(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    write_entries(file, [entry("alice", ALICE)])
    admission = AdmissionSettings(keys_file=str(file), price=PRICE, keys_interval_s=0.05)
    async with FakeUpstream(behaviour=hangs) as upstream, running_gateway(upstream, admission=admission) as gateway:
        async with raw_client(gateway) as client:
            await client.send(chat_request(extra=auth(ALICE)))
            while not requests_of(upstream):
                await asyncio.sleep(0)
            write_entries(file, [entry("alice", ALICE, budgets={"month": "20"})])
            while not (await usage_of_key(gateway))["budgets"]:
                await asyncio.sleep(0.01)
            upstream.behaviour = completes("x", prompt_tokens=1000, completion_tokens=500)
            await ask(gateway)
            before = (await usage_of_key(gateway))["budgets"][0]["spent"]
        await settled(gateway)
        after = (await usage_of_key(gateway))["budgets"][0]["spent"]

    assert before == Decimal("0.002")
    assert after >= before


async def test_tokens_under_way_count_and_come_back_when_the_client_leaves(tmp_path: Path) -> None:
    admission = AdmissionSettings(keys_file=keys_file(tmp_path, tokens_per_minute=1000))
    async with FakeUpstream(behaviour=hangs) as upstream, running_gateway(upstream, admission=admission) as gateway:
        async with raw_client(gateway) as client:
            await client.send(chat_request(chat_body(max_tokens=900), extra=auth(ALICE)))
            while not requests_of(upstream):
                await asyncio.sleep(0)
            refused = await ask(gateway, max_tokens=200)
        await settled(gateway)
        assert held(gateway) == 0
        upstream.behaviour = completes("x")
        accepted = await ask(gateway, max_tokens=200)

    assert (refused.status, refused.error["code"]) == (429, "rate_limit_exceeded")
    assert int(refused.header("retry-after") or 0) >= 1
    assert accepted.status == 200


async def test_requests_at_a_time_are_limited_by_key(tmp_path: Path) -> None:
    admission = AdmissionSettings(keys_file=keys_file(tmp_path, concurrent_requests=1))
    async with FakeUpstream(behaviour=hangs) as upstream, running_gateway(upstream, admission=admission) as gateway:
        async with raw_client(gateway) as client:
            await client.send(chat_request(extra=auth(ALICE)))
            while not requests_of(upstream):
                await asyncio.sleep(0)
            refused = await ask(gateway)
            upstream.behaviour = completes("x")
            other = await ask(gateway, BOB)
        await settled(gateway)
        again = await ask(gateway)

    assert (refused.status, refused.header("retry-after")) == (429, "1")
    assert "1 requests at a time" in str(refused.error["message"])
    assert (other.status, again.status) == (200, 200)


async def test_a_budget_is_spent_exactly_and_then_refuses(tmp_path: Path) -> None:
    admission = AdmissionSettings(keys_file=keys_file(tmp_path, budgets={"month": "0.0003"}), price=PRICE)
    answer = completes("x", prompt_tokens=100, completion_tokens=50)  # 0.0001 + 0.0001
    async with FakeUpstream(behaviour=answer) as upstream, running_gateway(upstream, admission=admission) as gateway:
        first = await ask(gateway, max_tokens=50)
        usage = await usage_of_key(gateway)
        second = await ask(gateway, max_tokens=50)
        hopeless = await ask(gateway, max_tokens=1000)

    assert (first.status, first.header("x-headrace-cost")) == (200, "0.0002")
    (budget,) = usage["budgets"]
    assert (budget["spent"], budget["held"], usage["total"]["cost"]) == (Decimal("0.0002"), 0, Decimal("0.0002"))
    assert (second.status, second.error["code"], second.error["type"]) == (
        429,
        "insufficient_quota",
        "insufficient_quota",
    )
    assert int(second.header("retry-after") or 0) > 0
    assert hopeless.status == 429
    assert len(requests_of(upstream)) == 1


async def test_a_budget_needs_a_price(tmp_path: Path) -> None:
    admission = AdmissionSettings(keys_file=keys_file(tmp_path, budgets={"day": 1}))
    async with FakeUpstream() as upstream, running_gateway(upstream, admission=admission) as gateway:
        answer = await ask(gateway)

    assert (answer.status, answer.error["code"]) == (403, "model_without_price")


async def test_cached_tokens_are_cheaper() -> None:
    usage = usage_of(prompt_tokens=10, completion_tokens=1) | {"prompt_tokens_details": {"cached_tokens": 4}}

    async def behaviour(exchange: Exchange) -> None:
        await exchange.respond(json.dumps({"usage": usage}).encode())

    admission = AdmissionSettings(price=PRICE)
    async with FakeUpstream(behaviour=behaviour) as upstream, running_gateway(upstream, admission=admission) as gateway:
        answer = await exchange(gateway, chat_request())
        total = (await usage_of_key(gateway))["total"]

    assert answer.header("x-headrace-cost") == "0.00001"  # (6 * 1 + 4 * 0.5 + 1 * 2) / 10**6
    assert (total["cached_tokens"], total["cost"]) == (4, Decimal("0.00001"))


async def engine_that_tells_usage_when_asked(exchange: Exchange) -> None:
    await exchange.start_chunked()
    for token in ("a", "b"):
        await exchange.chunk(chunk_event(token))
    if (exchange.request.json().get("stream_options") or {}).get("include_usage"):
        await exchange.chunk(usage_event(prompt_tokens=7, completion_tokens=2))
    await exchange.chunk(DONE)
    await exchange.chunk(b"")


async def test_a_stream_is_metered_whether_its_client_asked_for_usage_or_not(tmp_path: Path) -> None:
    admission = AdmissionSettings(keys_file=keys_file(tmp_path), price=PRICE)
    async with (
        FakeUpstream(behaviour=engine_that_tells_usage_when_asked) as upstream,
        running_gateway(upstream, admission=admission) as gateway,
    ):
        silent = await ask(gateway, stream=True)
        asking = await ask(gateway, stream=True, stream_options={"include_usage": True})
        total = (await usage_of_key(gateway))["total"]

    assert silent.body == chunk_event("a") + chunk_event("b") + DONE
    assert b'"usage"' in asking.body
    assert (total["num_requests"], total["num_estimated"]) == (2, 0)
    assert (total["prompt_tokens"], total["completion_tokens"], total["cost"]) == (14, 4, Decimal("0.000022"))


async def test_a_streams_cost_follows_it_for_clients_that_read_trailers(tmp_path: Path) -> None:
    admission = AdmissionSettings(price=PRICE)
    async with (
        FakeUpstream(behaviour=engine_that_tells_usage_when_asked) as upstream,
        running_gateway(upstream, admission=admission) as gateway,
        raw_client(gateway) as client,
    ):
        await client.send(chat_request(chat_body(stream=True), extra="TE: trailers\r\n"))
        head = await client.read_head()
        while num_bytes := int(await client.reader.readuntil(b"\r\n"), 16):
            await client.reader.readexactly(num_bytes + 2)
        trailer = await client.reader.readuntil(b"\r\n\r\n")

    assert head.header("trailer") == "x-headrace-cost"
    assert trailer == b"x-headrace-cost: 0.000011\r\n\r\n"


@pytest.mark.parametrize(
    ("behaviour", "status"),
    [(answers(400), 400), (answers(500), 500), (dies_at_once, 503)],
)
async def test_what_failed_costs_nothing(tmp_path: Path, behaviour: object, status: int) -> None:
    admission = AdmissionSettings(keys_file=keys_file(tmp_path, tokens_per_minute=1000), price=PRICE)
    async with FakeUpstream(behaviour=behaviour) as upstream, running_gateway(upstream, admission=admission) as gateway:
        answer = await ask(gateway)
        usage = await usage_of_key(gateway)
        assert held(gateway) == 0

    assert answer.status == status
    assert usage["total"]["num_requests"] == 0
    assert usage["limits"]["tokens_per_minute"]["remaining"] == 1000


async def test_a_stream_that_broke_off_costs_what_was_seen_of_it(tmp_path: Path) -> None:
    admission = AdmissionSettings(keys_file=keys_file(tmp_path), price=PRICE)
    async with (
        FakeUpstream(behaviour=dies_after("a", "b", "c")) as upstream,
        running_gateway(upstream, admission=admission) as gateway,
    ):
        await ask(gateway, stream=True)
        total = (await usage_of_key(gateway))["total"]

    assert (total["num_requests"], total["num_estimated"], total["completion_tokens"]) == (1, 1, 3)
    assert total["prompt_tokens"] > 0


async def test_a_client_that_leaves_a_stream_pays_for_what_it_got(tmp_path: Path) -> None:
    admission = AdmissionSettings(keys_file=keys_file(tmp_path, tokens_per_minute=10**6), price=PRICE)
    gate = asyncio.Semaphore(2)
    async with (
        FakeUpstream(behaviour=streams(["a", "b", "c", "d"], gate=gate)) as upstream,
        running_gateway(upstream, admission=admission) as gateway,
    ):
        async with raw_client(gateway) as client:
            await client.send(chat_request(chat_body(stream=True), extra=auth(ALICE)))
            await client.read_head()
            for _ in range(2):
                await client.read_chunk()
        await settled(gateway)
        usage = await usage_of_key(gateway)
        assert held(gateway) == 0

    assert (usage["total"]["num_estimated"], usage["total"]["completion_tokens"]) == (1, 2)


async def test_a_long_json_answer_is_not_held_back(tmp_path: Path) -> None:
    body = json.dumps({"text": "x" * (3 << 20), "usage": usage_of(prompt_tokens=5, completion_tokens=1)}).encode()

    async def behaviour(exchange: Exchange) -> None:
        await exchange.respond(body)

    admission = AdmissionSettings(price=PRICE)
    async with FakeUpstream(behaviour=behaviour) as upstream, running_gateway(upstream, admission=admission) as gateway:
        answer = await exchange(gateway, chat_request())
        total = (await usage_of_key(gateway))["total"]

    assert answer.body == body
    assert answer.header("x-headrace-cost") is None
    assert total["cost"] == Decimal("0.000007")


async def test_a_revoked_key_is_refused_after_the_next_look(tmp_path: Path) -> None:
    admission = AdmissionSettings(keys_file=keys_file(tmp_path), keys_interval_s=3600.0)
    async with FakeUpstream() as upstream, running_gateway(upstream, admission=admission) as gateway:
        before = await ask(gateway)
        write_entries(tmp_path / "keys.yaml", [entry("bob", BOB)])
        assert gateway.admission._keys is not None
        await gateway.admission._keys.look()
        after = await ask(gateway)
        other = await ask(gateway, BOB)

    assert (before.status, after.status, other.status) == (200, 401, 200)


def queueing(**more: object) -> AdmissionSettings:
    return AdmissionSettings(**({"max_in_flight_per_endpoint": 1} | more))


async def test_requests_wait_for_a_place_and_the_higher_class_goes_first() -> None:
    gate = asyncio.Semaphore(0)
    async with (
        FakeUpstream(behaviour=streams(["a"], gate=gate)) as upstream,
        running_gateway(upstream, admission=queueing()) as gateway,
        raw_client(gateway) as first,
        raw_client(gateway) as low,
        raw_client(gateway) as high,
    ):
        await first.send(chat_request(chat_body(stream=True, user="first")))
        while not requests_of(upstream):
            await asyncio.sleep(0)
        for number, (client, name) in enumerate([(low, "batch"), (high, "interactive")], start=1):
            extra = f"x-headrace-priority: {name}\r\n"
            await client.send(chat_request(chat_body(stream=True, user=name), extra=extra))
            while sum(gateway.admission.statistics().gate.num_waiting.values()) < number:
                await asyncio.sleep(0)
        for _ in range(3):
            gate.release()
        for client in (first, high, low):
            assert (await client.read_answer()).status == 200

    assert [one.json()["user"] for one in requests_of(upstream)] == ["first", "interactive", "batch"]


async def test_a_full_queue_and_a_long_wait_answer_503_with_a_time_to_come_back() -> None:
    admission = queueing(max_queued_requests=1, queue_timeout_s=0.3)
    async with (
        FakeUpstream(behaviour=hangs) as upstream,
        running_gateway(upstream, admission=admission) as gateway,
        raw_client(gateway) as runs,
        raw_client(gateway) as waits,
    ):
        await runs.send(chat_request())
        while not requests_of(upstream):
            await asyncio.sleep(0)
        await waits.send(chat_request())
        while not sum(gateway.admission.statistics().gate.num_waiting.values()):
            await asyncio.sleep(0)
        full = await exchange(gateway, chat_request())
        late = await waits.read_answer()

    assert (full.status, full.error["code"]) == (503, "queue_full")
    assert (late.status, late.error["code"]) == (503, "queue_timeout")
    assert int(full.header("retry-after") or 0) >= 1
    assert int(late.header("retry-after") or 0) >= 1
    assert len(requests_of(upstream)) == 1


async def test_clients_that_leave_while_they_wait_hold_nothing_and_reach_nobody(tmp_path: Path) -> None:
    admission = queueing(keys_file=keys_file(tmp_path, concurrent_requests=5, tokens_per_minute=10**6))
    async with FakeUpstream(behaviour=hangs) as upstream, running_gateway(upstream, admission=admission) as gateway:
        async with raw_client(gateway) as runs:
            await runs.send(chat_request(extra=auth(ALICE)))
            while not requests_of(upstream):
                await asyncio.sleep(0)
            async with raw_client(gateway) as one, raw_client(gateway) as two:
                for client in (one, two):
                    await client.send(chat_request(extra=auth(ALICE)))
                while held(gateway) < 3:
                    await asyncio.sleep(0)
            while held(gateway) > 1:
                await asyncio.sleep(0)
            assert sum(gateway.admission.statistics().gate.num_waiting.values()) == 0
        await settled(gateway)
        assert held(gateway) == 0
        usage = await usage_of_key(gateway)

    assert len(requests_of(upstream)) == 1
    assert usage["total"]["num_requests"] == 1  # the one that ran, by its prompt


async def test_an_unknown_priority_is_refused_by_name() -> None:
    async with FakeUpstream() as upstream, running_gateway(upstream) as gateway:
        answer = await exchange(gateway, chat_request(extra="x-headrace-priority: urgent\r\n"))

    assert (answer.status, answer.error["param"]) == (400, "x-headrace-priority")
    assert requests_of(upstream) == []


async def test_the_settled_costs_add_up_to_the_usages(tmp_path: Path) -> None:
    usages: list[tuple[int, int, int]] = []

    async def behaviour(exchange: Exchange) -> None:
        number = len(usages)
        prompt, cached, completion = 11 + number * 7, number * 3, 5 + number
        usages.append((prompt, cached, completion))
        details = {"prompt_tokens_details": {"cached_tokens": cached}}
        usage = usage_of(prompt_tokens=prompt, completion_tokens=completion) | details
        await exchange.respond(json.dumps({"usage": usage}).encode())

    admission = AdmissionSettings(keys_file=keys_file(tmp_path), price=("0.123457/0.000001/0.999999",))
    async with FakeUpstream(behaviour=behaviour) as upstream, running_gateway(upstream, admission=admission) as gateway:
        replies = await asyncio.gather(*(ask(gateway, key) for key in (ALICE, BOB) * 10))
        totals = [(await usage_of_key(gateway, key))["total"] for key in (ALICE, BOB)]
        metrics = gateway.statistics().admission

    costs = [
        (prompt - cached) * Decimal("0.123457") + cached * Decimal("0.000001") + completion * Decimal("0.999999")
        for prompt, cached, completion in usages
    ]
    assert len(usages) == 20
    assert sum(total["cost"] for total in totals) == sum(costs) / 10**6
    assert sum(Decimal(reply.header("x-headrace-cost") or 0) for reply in replies) == sum(costs) / 10**6
    assert sum(total["prompt_tokens"] for total in totals) == sum(prompt for prompt, _, _ in usages)
    assert sum(Decimal(view.cost) for view in metrics.keys) == sum(costs) / 10**6


async def test_metrics_name_refusals_and_money_but_no_key(tmp_path: Path) -> None:
    admission = AdmissionSettings(keys_file=keys_file(tmp_path), price=PRICE)
    async with (
        FakeUpstream() as upstream,
        running_gateway(upstream, admission=admission, admin_port=0) as gateway,
        httpx.AsyncClient(base_url=gateway.admin_url or "", timeout=5) as client,
    ):
        await ask(gateway)
        await ask(gateway, "hr-eve")
        gateway.statistics()
        text = (await client.get("/metrics")).text

    assert 'headrace_gateway_refusals_total{why="invalid_api_key"} 1.0' in text
    assert 'headrace_gateway_bills_total{source="usage"} 1.0' in text
    assert 'headrace_gateway_cost_total{model="demo"}' in text
    assert "hr-" not in text
