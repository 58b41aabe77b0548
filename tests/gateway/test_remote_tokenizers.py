"""Prompts counted at the endpoints that serve the model, over real sockets."""

import asyncio
import json

import pytest

from headrace.gateway.prompt.remote_tokenizers import key_of
from headrace.testing.fake_tokenizer_server import FakeTokenizerApi
from headrace.testing.fake_upstream import Behaviour, Exchange, FakeUpstream, Received, answers, completes, hangs
from tests.gateway.support import CHAT, RawAnswer, chat_body, chat_request, exchange, running_gateway

pytestmark = pytest.mark.integration

DEMO = "models/demo"
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]


class Engine:
    """Behaviour of an engine that tokenizes; what it was asked to tokenize is in `asked`."""

    def __init__(self, *, tokenizes: Behaviour | None = None) -> None:
        self.api = FakeTokenizerApi()
        self.asked: list[Received] = []
        self.tokenizes = tokenizes or self._tokenize
        self.answers = completes("Hello.")

    async def __call__(self, exchange_: Exchange) -> None:
        request = exchange_.request
        if request.target == "/tokenize":
            self.asked.append(request)
            await self.tokenizes(exchange_)
        else:
            await self.answers(exchange_)

    async def _tokenize(self, exchange_: Exchange) -> None:
        status, answer = self.api.answer("/tokenize", exchange_.request.json())
        await exchange_.respond(json.dumps(answer).encode(), status=status)

    def num_tokens(self, path: str, request: dict[str, object]) -> int:
        status, answer = self.api.answer(path, {"model": "demo", **request})
        assert status == 200, answer
        count = answer["count"]
        assert isinstance(count, int)
        return count


def counted(answer: RawAnswer) -> tuple[str, int | None]:
    """Whose count it was, and the count."""
    reason = answer.header("x-headrace-reason") or ""
    tokens = answer.header("x-headrace-prompt-tokens")
    return reason.partition("tokens ")[2].split(";")[0], None if tokens is None else int(tokens)


@pytest.mark.parametrize("mode", ["remote", "auto"])
async def test_a_chat_is_counted_whole_at_an_endpoint(mode: str) -> None:
    engine = Engine()
    messages = [{"role": "user", "content": "Grüß Gott"}]
    async with FakeUpstream(behaviour=engine) as upstream, running_gateway(upstream, tokenizer=mode) as gateway:
        answer = await exchange(gateway, chat_request(chat_body(messages=messages, tools=TOOLS)))

    assert counted(answer) == ("remote", engine.num_tokens("/tokenize", {"messages": messages, "tools": TOOLS}))
    assert engine.asked[0].json()["tools"] == TOOLS


async def test_a_text_is_counted_at_an_endpoint_and_routed_by_its_tokens() -> None:
    engine = Engine()
    body = json.dumps({"model": "demo", "prompt": "Hello, world"}).encode()
    async with (
        FakeUpstream(behaviour=engine) as one,
        FakeUpstream(behaviour=engine) as two,
        running_gateway(one, two, tokenizer="remote") as gateway,
    ):
        answer = await exchange(gateway, chat_request(body, path="/v1/completions"))

    assert counted(answer) == ("remote", len("Hello, world"))
    assert "by text" not in (answer.header("x-headrace-reason") or "")


async def test_what_was_asked_lately_is_not_asked_again() -> None:
    engine = Engine()
    async with FakeUpstream(behaviour=engine) as upstream, running_gateway(upstream, tokenizer="auto") as gateway:
        first = await exchange(gateway, chat_request())
        second = await exchange(gateway, chat_request())

    assert counted(first) == counted(second)
    assert len(engine.asked) == 1


async def test_a_retry_at_another_endpoint_asks_for_no_second_count() -> None:
    engine = Engine()
    engine.answers = answers(503)
    async with (
        FakeUpstream(behaviour=engine) as one,
        FakeUpstream(behaviour=engine) as two,
        running_gateway(one, two, tokenizer="remote") as gateway,
    ):
        await exchange(gateway, chat_request())

    assert len(engine.asked) == 1


async def test_auto_asks_nobody_for_a_model_whose_tokenizer_is_here() -> None:
    engine = Engine()
    async with (
        FakeUpstream(behaviour=engine) as upstream,
        running_gateway(upstream, tokenizer="auto", tokenizer_path=(f"demo={DEMO}",)) as gateway,
    ):
        answer = await exchange(gateway, chat_request())

    assert counted(answer)[0] == "exact"
    assert engine.asked == []


@pytest.mark.parametrize(
    ("tokenizes", "why"),
    [
        (answers(501), "remote_endpoint_fault"),
        (answers(429), "remote_overloaded"),
        (answers(200, body=b'{"tokens":"none"}'), "remote_bad_answer"),
        (answers(400, body=b'{"error":{"message":"no such field","code":400}}'), "prompt_not_understood"),
    ],
)
async def test_without_a_count_the_request_goes_on_and_says_why(tokenizes: Behaviour, why: str) -> None:
    engine = Engine(tokenizes=tokenizes)
    async with (
        FakeUpstream(behaviour=engine) as upstream,
        running_gateway(upstream, tokenizer="remote") as gateway,
    ):
        answer = await exchange(gateway, chat_request())

    assert answer.status == 200
    assert counted(answer) == (why, None)


async def test_an_endpoint_that_does_not_count_in_time_is_not_waited_for() -> None:
    engine = Engine(tokenizes=hangs)
    async with (
        FakeUpstream(behaviour=engine) as upstream,
        running_gateway(upstream, tokenizer="remote", tokenize_timeout_s=0.4) as gateway,
    ):
        answer = await exchange(gateway, chat_request())
        await upstream.wait_for(lambda: upstream.num_running == 0)

    assert answer.status == 200
    why, tokens = counted(answer)
    assert why in {"remote_timeout", "tokenize_timeout"}  # the first, unless the machine is late
    assert tokens is None


async def test_the_gateways_own_tokenizer_stands_in_for_endpoints_that_fail() -> None:
    engine = Engine(tokenizes=answers(501))
    async with (
        FakeUpstream(behaviour=engine) as upstream,
        running_gateway(upstream, tokenizer="remote", tokenizer_path=(f"demo={DEMO}",)) as gateway,
    ):
        answer = await exchange(gateway, chat_request())
        own = await gateway.tokenization.encode("x", model="demo")

    why, tokens = counted(answer)
    assert why == "local_after_endpoint_fault"
    assert tokens is not None
    assert len(own.token_ids) == 1


async def test_what_both_tokenizers_give_is_compared() -> None:
    engine = Engine()
    body = json.dumps({"model": "demo", "prompt": "Hello, world"}).encode()
    async with (
        FakeUpstream(behaviour=engine) as upstream,
        running_gateway(
            upstream, tokenizer="remote", tokenizer_path=(f"demo={DEMO}",), tokenizer_parity_share=1.0
        ) as gateway,
    ):
        await exchange(gateway, chat_request(body, path="/v1/completions"))
        assert gateway.tokens.remote is not None
        async with asyncio.timeout(20):
            while not gateway.tokens.remote.statistics().num_parity_checks:
                await asyncio.sleep(0.01)

        assert gateway.tokens.remote.statistics().num_parity_mismatches == 1


async def test_the_pool_keeps_no_more_tokenizers_than_the_operator_says() -> None:
    async with (
        FakeUpstream(behaviour=Engine()) as first,
        FakeUpstream(behaviour=Engine()) as second,
        running_gateway(first, second, tokenizer="remote", max_remote_tokenizers=1) as gateway,
    ):
        for number in range(6):
            body = json.dumps({"model": "demo", "prompt": f"{number}"}).encode()
            await exchange(gateway, chat_request(body, path="/v1/completions"))
        assert gateway.tokens.remote is not None
        assert len(gateway.tokens.remote.statistics().members) == 1


async def test_a_client_that_leaves_while_its_prompt_is_counted_leaves_nothing() -> None:
    engine = Engine(tokenizes=hangs)
    async with (
        FakeUpstream(behaviour=engine) as upstream,
        running_gateway(upstream, tokenizer="remote", tokenize_timeout_s=60.0) as gateway,
    ):
        asking = asyncio.ensure_future(exchange(gateway, chat_request()))
        await upstream.wait_for(lambda: bool(engine.asked) and upstream.num_running > 0)
        asking.cancel()
        await upstream.wait_for(lambda: upstream.num_running == 0)
        async with asyncio.timeout(20):
            while gateway.slots.num_taken:
                await asyncio.sleep(0.01)


def test_a_key_tells_paths_models_and_bodies_apart() -> None:
    keys = {
        key_of(path, model, body) for path in (CHAT, "/tokenize") for model in ("a", "b") for body in (b"{}", b"[]")
    }

    assert len(keys) == 8
    assert None not in keys
    assert key_of(CHAT, "a", b"x" * (2 << 20)) is None
