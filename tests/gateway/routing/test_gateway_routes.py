"""Routing over sockets: the gateway in front of fake engines."""

import asyncio
import json
from pathlib import Path

import msgspec
import pytest

from headrace.gateway.app import Gateway
from headrace.gateway.simulation import read_trace
from headrace.testing.fake_upstream import Behaviour, Exchange, FakeUpstream, dies_at_once, hangs
from tests.gateway.support import RawAnswer, chat_body, chat_request, exchange, raw_client, running_gateway, settled

pytestmark = pytest.mark.integration
DEMO = str(Path(__file__).parents[3] / "models" / "demo")
LONG = "The channel carries the water to the wheel, and the wheel turns the stone. " * 20


def answers_with(cached_tokens: int | None) -> Behaviour:
    details = {} if cached_tokens is None else {"prompt_tokens_details": {"cached_tokens": cached_tokens}}
    usage = {"prompt_tokens": 400, "completion_tokens": 7, "total_tokens": 407, **details}
    body = json.dumps({"id": "x", "object": "chat.completion", "choices": [], "usage": usage}).encode()

    async def behaviour(exchange: Exchange) -> None:
        await exchange.respond(body)

    return behaviour


def turn(*texts: str, **fields: object) -> bytes:
    roles = ("user", "assistant")
    messages = [{"role": roles[at % 2], "content": text} for at, text in enumerate(texts)]
    return chat_request(chat_body(messages=messages, **fields))


async def ask(gateway: Gateway, request: bytes) -> RawAnswer:
    answer = await exchange(gateway, request)
    assert answer.status == 200, answer.body
    return answer


def predicted(answer: RawAnswer) -> int:
    return int(answer.header("x-headrace-cached-tokens-predicted") or -1)


async def test_the_next_turn_goes_where_the_last_one_was_answered() -> None:
    async with (
        FakeUpstream(root=DEMO, behaviour=answers_with(None)) as one,
        FakeUpstream(root=DEMO, behaviour=answers_with(None)) as two,
        running_gateway(one, two) as gateway,
    ):
        first = await ask(gateway, turn(LONG))
        # Where each goes depends on a hash of the endpoints' random ports: a few could all go to the same one.
        others = [await ask(gateway, turn(f"{number} {LONG}")) for number in range(24)]
        second = await ask(gateway, turn(LONG, "It turns.", "Why?"))

    assert {answer.header("x-headrace-endpoint") for answer in [first, *others]} == {one.url, two.url}
    assert second.header("x-headrace-endpoint") == first.header("x-headrace-endpoint")
    assert predicted(first) == 0
    assert predicted(second) % 16 == 0
    assert 16 <= predicted(second) <= int(first.header("x-headrace-prompt-tokens") or 0)
    assert "holds" in (second.header("x-headrace-reason") or "")


async def test_gateways_that_know_nothing_of_each_other_agree_on_new_prompts() -> None:
    async with (
        FakeUpstream(root=DEMO) as one,
        FakeUpstream(root=DEMO) as two,
        FakeUpstream(root=DEMO) as three,
        running_gateway(one, two, three) as first,
        running_gateway(three, one, two) as second,
    ):
        chosen = [
            [
                (await ask(gateway, turn(f"{number} {LONG}"))).header("x-headrace-endpoint")
                for gateway in (first, second)
            ]
            for number in range(16)
        ]

    assert all(here == there for here, there in chosen)
    assert len({here for here, _ in chosen}) > 1


async def test_without_tokens_the_text_decides_and_the_reason_says_so() -> None:
    async with FakeUpstream() as one, FakeUpstream() as two, running_gateway(one, two) as gateway:
        first = await ask(gateway, turn(LONG))
        for number in range(4):
            await ask(gateway, turn(f"{number} {LONG}"))
        second = await ask(gateway, turn(LONG, "It turns.", "Why?"))

    assert second.header("x-headrace-endpoint") == first.header("x-headrace-endpoint")
    assert "by text; tokens no_tokenizer" in (second.header("x-headrace-reason") or "")
    assert second.header("x-headrace-cached-tokens-predicted") is None


async def test_an_engine_that_has_lost_its_cache_is_believed() -> None:
    async with FakeUpstream(root=DEMO, behaviour=answers_with(0)) as upstream, running_gateway(upstream) as gateway:
        await ask(gateway, turn("another " + LONG))
        await ask(gateway, turn(LONG))
        known = await ask(gateway, turn(LONG))
        other = await ask(gateway, turn("another " + LONG))

    assert predicted(known) > 0
    assert predicted(other) == 0


async def test_a_session_stays_with_its_endpoint() -> None:
    async with (
        FakeUpstream() as one,
        FakeUpstream() as two,
        running_gateway(one, two, policy="session") as gateway,
    ):
        by_header = {
            (await ask(gateway, chat_request(extra=f"X-Session-Id: {name}\r\n"))).header("x-headrace-endpoint")
            for name in "aaaa"
        }
        by_user = {(await ask(gateway, turn("Hi", user="somebody"))).header("x-headrace-endpoint") for _ in range(4)}
        spread = {
            (await ask(gateway, turn("Hi", user=str(number)))).header("x-headrace-endpoint") for number in range(24)
        }

    assert (len(by_header), len(by_user), len(spread)) == (1, 1, 2)


async def test_the_weight_of_an_endpoint_counts() -> None:
    async with FakeUpstream() as one, FakeUpstream() as two:
        weights = (f"{one.url}=1000", f"{two.url}=0.001")
        async with running_gateway(one, two, endpoint_weight=weights) as gateway:
            for number in range(5):
                await ask(gateway, turn(f"{number} {LONG}"))

    assert (len(one.received), len(two.received)) == (5, 0)


async def test_tokens_that_wait_are_given_back_when_the_answer_begins_and_when_the_client_leaves() -> None:
    async with FakeUpstream(root=DEMO, behaviour=hangs) as upstream, running_gateway(upstream) as gateway:
        (endpoint,) = gateway.fleet.endpoints
        async with raw_client(gateway) as client:
            await client.send(turn(LONG))
            await upstream.wait_for(lambda: upstream.num_running == 1)
            waiting = endpoint.num_waiting_tokens
        await settled(gateway)
        left = endpoint.num_waiting_tokens
        gate = asyncio.Event()

        async def begins(exchange: Exchange) -> None:
            await exchange.start_chunked()
            await gate.wait()
            await exchange.chunk(b"")

        upstream.behaviour = begins
        async with raw_client(gateway) as client:
            await client.send(turn(LONG))
            await client.read_head()
            answering = (endpoint.num_in_flight, endpoint.num_waiting_tokens)
            gate.set()
            await client.read_chunk()
        await settled(gateway)

    assert waiting > 100
    assert left == 0
    assert answering == (1, 0)


async def test_what_an_endpoint_failed_to_answer_is_not_learnt() -> None:
    async with (
        FakeUpstream(root=DEMO, behaviour=dies_at_once) as one,
        running_gateway(one, breaker_failures=99) as gateway,
    ):
        failed = await exchange(gateway, turn(LONG))
        statistics = gateway.routing.statistics().index
        (endpoint,) = gateway.fleet.endpoints
        slot = endpoint.holders[0].slot
        stored = [run.holds[slot].num_stored for run in gateway.routing._index._runs.with_slot(slot)]

    assert failed.status in {502, 503}
    assert statistics.num_blocks > 0
    assert stored == [0]
    assert endpoint.num_waiting_tokens == 0


async def test_decisions_are_written_down_for_replay(tmp_path: Path) -> None:
    log = tmp_path / "decisions.jsonl"
    async with (
        FakeUpstream(root=DEMO, behaviour=answers_with(3)) as upstream,
        running_gateway(upstream, decision_log=str(log)) as gateway,
    ):
        for number in range(3):
            await ask(gateway, turn(f"{number} {LONG}"))

    lines = [msgspec.json.decode(line) for line in log.read_bytes().splitlines()]
    requests = read_trace(log.read_bytes().splitlines())
    assert [line["policy"] for line in lines] == ["prefix"] * 3
    assert [line["cached_tokens"] for line in lines] == [3] * 3
    assert all(line["reason"] == "only endpoint" and line["outcome"] == "200" for line in lines)
    assert len({tuple(request.hash_ids) for request in requests}) == 3
    assert all(len(request.hash_ids) == request.input_length // 16 // 32 + 1 for request in requests)
    assert {request.output_length for request in requests} == {7}


async def test_the_decision_log_is_a_sample_and_stays_small(tmp_path: Path) -> None:
    log = tmp_path / "decisions.jsonl"
    async with (
        FakeUpstream(root=DEMO) as upstream,
        running_gateway(upstream, decision_log=str(log), max_decision_log_bytes=1000) as gateway,
    ):
        file = gateway.routing.decision_file
        assert file is not None
        for number in range(6):
            await ask(gateway, turn(f"{number} {LONG}"))
            await file.flush()
        statistics = file.statistics()
        async with running_gateway(
            upstream, decision_log=str(tmp_path / "none.jsonl"), decision_log_share=0.0
        ) as other:
            await ask(other, turn(LONG))

    assert (statistics.num_written, statistics.num_dropped) == (6, 0)
    assert log.stat().st_size <= 1000
    assert (tmp_path / "decisions.jsonl.1").stat().st_size <= 1000
    assert not (tmp_path / "none.jsonl").exists()


async def test_a_log_that_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    async with (
        FakeUpstream(root=DEMO) as upstream,
        running_gateway(upstream, decision_log=str(tmp_path / "missing" / "log.jsonl")) as gateway,
    ):
        await ask(gateway, turn(LONG))
        file = gateway.routing.decision_file
        assert file is not None
        await file.flush()

        assert file.statistics().num_dropped == 1
