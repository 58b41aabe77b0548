"""Token-in as endpoints meet it: asked what they take, proved, tried, trusted, audited, demoted and restored."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from headrace.gateway.app import Gateway
from headrace.gateway.token_in.capability import UNKNOWN
from headrace.testing.fake_upstream import Exchange, FakeUpstream, answers, dies_at_once
from headrace.testing.tokenizing_engine import TokenizingEngine
from tests.gateway.support import RawAnswer, chat_body, chat_request, exchange, running_gateway

pytestmark = pytest.mark.integration

TEMPLATE = "{% for message in messages %}{{ message['role'] }} {{ message['content'] }} {% endfor %}assistant"
QUESTION = "how are you"
CHAT_IDS = [1, 3, 4, 5, 2]
"""user how are you assistant"""
TIMEOUT_S = 20.0


def tokenizer() -> Tokenizer:
    words = {word: index for index, word in enumerate(["?", "user", "assistant", "how", "are", "you"])}
    made = Tokenizer(models.WordLevel(words, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return made


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's tokenizer, as both the gateway and the fake engines have it."""
    path = tmp_path_factory.mktemp("tokenizer")
    tokenizer().save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return path


def render(messages: Sequence[dict[str, str]]) -> str:
    return "".join(f"{message['role']} {message['content']} " for message in messages) + "assistant"


def engine(*, tells_tokens: bool = True) -> TokenizingEngine:
    made = tokenizer()
    return TokenizingEngine(lambda text: made.encode(text).ids, render=render, tells_tokens=tells_tokens)


@asynccontextmanager
async def in_front_of(*upstreams: FakeUpstream, **settings: object) -> AsyncIterator[Gateway]:
    defaults: dict[str, object] = {"token_in_min_tokens": 1, "parity_drifts": 2, "parity_recovery": 3}
    async with running_gateway(*upstreams, **(defaults | settings)) as gateway:
        yield gateway


async def wait_until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not is_so():
            await asyncio.sleep(0.002)


async def wait_asked(gateway: Gateway) -> None:
    """Until every endpoint has said what it takes, and no more."""
    await wait_until(lambda: all(one.capability is not UNKNOWN for one in gateway.fleet.endpoints))


async def wait_proof(gateway: Gateway, proof: str) -> None:
    """Until the ids of examples have been compared on both routes."""

    def proofs() -> list[str]:
        return [view.proof for one in gateway.parity.statistics() for view in one.token_in]

    await wait_until(lambda: proofs() == [proof, proof])


async def ask(gateway: Gateway, **fields: object) -> RawAnswer:
    body = chat_body(messages=[{"role": "user", "content": QUESTION}], **fields)
    return await exchange(gateway, chat_request(body))


async def forms(gateway: Gateway, number: int) -> list[str | None]:
    """What goes to the endpoint for so many requests, one after the other."""
    return [(await ask(gateway)).header("x-headrace-token-in") for _ in range(number)]


def upstream_of(behaviour: TokenizingEngine, directory: Path, **fields: object) -> FakeUpstream:
    return FakeUpstream(owned_by="headrace", root=str(directory), behaviour=behaviour, **fields)


async def test_an_engine_whose_ids_are_ours_gets_ids_from_then_on(directory: Path) -> None:
    made = engine()
    async with upstream_of(made, directory) as upstream, in_front_of(upstream) as gateway:
        await wait_proof(gateway, "equal")
        answer = await ask(gateway)
        plain = await exchange(
            gateway, chat_request(json.dumps({"model": "demo", "prompt": QUESTION}).encode(), path="/v1/completions")
        )

    assert answer.header("x-headrace-token-in") == plain.header("x-headrace-token-in") == "yes"
    chat, completion = (received.json() for received in upstream.received[-2:])
    assert chat["prompt_token_ids"] == CHAT_IDS
    assert chat["messages"] == [{"role": "user", "content": QUESTION}]
    assert completion["prompt"] == [3, 4, 5]
    assert (made.num_by_ids, made.num_by_text) == (2, 0)


async def test_an_engine_whose_ids_are_not_ours_gets_text_and_a_warning(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = engine()
    made.skew = [0]
    async with upstream_of(made, directory) as upstream, in_front_of(upstream) as gateway:
        await wait_proof(gateway, "differs")

        assert await forms(gateway, 2) == ["no; proof_differs"] * 2
    assert made.num_by_ids == 0
    assert "its token ids on /v1/chat/completions are not those" in caplog.text


async def test_an_engine_that_tells_no_tokens_is_tried_by_its_counts(directory: Path) -> None:
    made = engine(tells_tokens=False)
    async with upstream_of(made, directory) as upstream, in_front_of(upstream) as gateway:
        await wait_proof(gateway, "untold")

        assert await forms(gateway, 4) == ["no; trial", "no; trial", "yes", "yes"]
    assert made.num_by_ids == 2


async def test_an_unknown_engine_gets_text_and_is_asked_for_nothing_more(directory: Path) -> None:
    made = engine()
    async with (
        FakeUpstream(root=str(directory), behaviour=made) as upstream,
        in_front_of(upstream) as gateway,
    ):
        await wait_asked(gateway)
        body = chat_body(messages=[{"role": "user", "content": QUESTION}], stream=True)
        answer = await exchange(gateway, chat_request(body))

    assert answer.header("x-headrace-token-in") == "no; not_taken"
    assert [received.body for received in upstream.received] == [body]


async def test_an_engine_whose_counts_begin_to_differ_is_demoted_and_its_limits_are_estimates(directory: Path) -> None:
    made = engine()
    async with upstream_of(made, directory) as upstream, in_front_of(upstream, token_in_audit_every=3) as gateway:
        await wait_proof(gateway, "equal")
        assert await forms(gateway, 3) == ["yes", "yes", "no; audit"]

        made.skew = [0]
        assert await forms(gateway, 3) == ["yes", "yes", "no; audit"]
        assert await forms(gateway, 2) == ["no; doubted", "no; drift"]
        answer = await ask(gateway)
        (parity,) = gateway.parity.statistics()

    assert "tokens drift" in (answer.header("x-headrace-reason") or "")
    assert parity.drifting == ("/v1/chat/completions plain",)
    assert [(view.route, view.state) for view in parity.token_in] == [
        ("/v1/chat/completions", "demoted"),
        ("/v1/completions", "trusted"),
    ]
    assert {example.num_tokens_off for example in parity.examples} == {-1}


async def test_a_prompt_at_the_limit_is_the_engines_to_judge_once_counts_have_differed(directory: Path) -> None:
    made = engine()
    async with upstream_of(made, directory, max_model_len=6) as upstream, in_front_of(upstream) as gateway:
        await wait_proof(gateway, "equal")
        refused = await ask(gateway, max_tokens=2)
        made.skew = [0]
        gateway.parity.forget_endpoint(upstream.url)
        await forms(gateway, 3)
        passed = await ask(gateway, max_tokens=2)

    assert (refused.status, passed.status) == (400, 200)


async def test_equal_counts_in_a_row_restore_it(directory: Path) -> None:
    made = engine(tells_tokens=False)
    made.skew = [0]
    async with upstream_of(made, directory) as upstream, in_front_of(upstream) as gateway:
        await wait_proof(gateway, "untold")
        await forms(gateway, 2)
        made.skew = []
        afterwards = await forms(gateway, 8)

    assert afterwards[:3] == ["no; drift"] * 3
    assert afterwards[-1] == "yes"


async def test_an_engine_that_comes_back_is_asked_and_proved_anew(directory: Path) -> None:
    made = engine()
    made.skew = [0]
    async with upstream_of(made, directory) as upstream, in_front_of(upstream, unhealthy_after=1) as gateway:
        (endpoint,) = gateway.fleet.endpoints
        await wait_proof(gateway, "differs")

        await upstream.stop()
        await gateway.endpoints.health.probe(endpoint)
        made.skew = []
        await upstream.start()
        await gateway.endpoints.health.probe(endpoint)
        await wait_proof(gateway, "equal")

        assert await forms(gateway, 1) == ["yes"]


async def test_a_stream_tells_its_usage_to_the_gateway_and_not_to_who_did_not_ask(directory: Path) -> None:
    made = engine()
    async with upstream_of(made, directory) as upstream, in_front_of(upstream) as gateway:
        await wait_proof(gateway, "equal")
        silent = await ask(gateway, stream=True)
        asking = await ask(gateway, stream=True, stream_options={"include_usage": True})
        (parity,) = gateway.parity.statistics()

    assert b'"usage"' not in silent.body
    assert b'"usage"' in asking.body
    assert parity.num_exact == 2


async def test_an_endpoint_asked_instead_of_another_gets_what_it_takes_itself(directory: Path) -> None:
    ours, other = engine(), engine()
    async with (
        upstream_of(ours, directory) as first,
        FakeUpstream(root=str(directory), behaviour=other) as second,
        in_front_of(first, second, policy="round_robin") as gateway,
    ):
        await wait_asked(gateway)
        await wait_proof(gateway, "equal")
        first.behaviour = dies_at_once
        told = [await ask(gateway) for _ in range(2)]

    assert [answer.status for answer in told] == [200, 200]
    assert {answer.header("x-headrace-token-in") for answer in told} == {"no; not_taken"}
    assert all("prompt_token_ids" not in received.json() for received in second.received)
    assert any("prompt_token_ids" in received.json() for received in first.received)


async def refuses_ids(self: TokenizingEngine, exchange: Exchange) -> None:
    if "prompt_token_ids" in exchange.request.json():
        await exchange.respond(b'{"error":{"message":"no ids, please"}}', status=400)
    else:
        await self(exchange)


async def test_ids_that_an_engine_refuses_are_sent_once_more_as_text_and_soon_no_more(directory: Path) -> None:
    made = engine()
    async with upstream_of(made, directory) as upstream, in_front_of(upstream, parity_recovery=20) as gateway:
        await wait_proof(gateway, "equal")
        upstream.behaviour = partial(refuses_ids, made)
        told = [await ask(gateway) for _ in range(6)]
        statistics = gateway.fleet.endpoints[0].load.statistics()

    assert {answer.status for answer in told} == {200}
    whys = [answer.header("x-headrace-token-in") for answer in told]
    assert whys == ["no; ids_refused"] * 3 + ["no; demoted"] * 3
    assert (statistics.num_done, statistics.num_failed) == (6, 0)


async def test_what_is_refused_as_text_too_is_the_clients_fault_and_told_so(directory: Path) -> None:
    made = engine()
    async with upstream_of(made, directory) as upstream, in_front_of(upstream) as gateway:
        await wait_proof(gateway, "equal")
        upstream.behaviour = answers(400, body=b'{"error":{"message":"bad temperature"}}')
        refused = await ask(gateway)
        upstream.behaviour = made

        assert await forms(gateway, 1) == ["yes"]
    assert (refused.status, refused.error["message"]) == (400, "bad temperature")


async def test_what_was_predicted_of_the_cache_is_compared_by_cause(directory: Path) -> None:
    made = engine()
    async with upstream_of(made, directory) as upstream, in_front_of(upstream) as gateway:
        await wait_proof(gateway, "equal")
        await ask(gateway)
        (parity,) = gateway.parity.statistics()

    assert parity.cached_causes == {"not_told": 1}


async def test_with_token_in_off_every_engine_gets_text(directory: Path) -> None:
    made = engine()
    async with upstream_of(made, directory) as upstream, in_front_of(upstream, token_in="off") as gateway:
        await wait_proof(gateway, "equal")

        assert await forms(gateway, 1) == ["no; off"]
