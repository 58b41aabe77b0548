"""/tokenize, /detokenize and count_tokens answered by the gateway, as an engine answers them, over real sockets."""

import json
from pathlib import Path

import pytest

from headrace.gateway.app import Gateway
from headrace.testing.fake_upstream import Exchange, FakeUpstream
from tests.gateway.support import RawAnswer, chat_request, exchange, running_gateway

pytestmark = pytest.mark.integration

DEMO = str(Path(__file__).parents[2] / "models" / "demo")
HERE = "answered by the gateway"
CHAT = [{"role": "user", "content": "Grüß Gott"}]


async def relayed(exchange_: Exchange) -> None:
    await exchange_.respond(b'{"by":"engine"}', status=200 if exchange_.request.method == "POST" else 404)


async def ask(gateway: Gateway, path: str, **fields: object) -> RawAnswer:
    return await exchange(gateway, chat_request(json.dumps({"model": "demo"} | fields).encode(), path=path))


async def test_a_text_becomes_its_tokens() -> None:
    async with FakeUpstream(behaviour=relayed, root=DEMO) as upstream, running_gateway(upstream) as gateway:
        answer = await ask(gateway, "/tokenize", prompt="Hello, world", return_token_strs=True)
        own = await gateway.tokenization.encode("Hello, world", model="demo")
        strings = gateway.tokenization.tokenizer("demo").token_strings(own.token_ids)

    assert answer.header("x-headrace-reason") == HERE
    assert answer.header("x-request-id")
    expected = {"count": len(own.token_ids), "max_model_len": 4096, "tokens": own.token_ids.tolist()}
    assert json.loads(answer.body) == expected | {"token_strs": strings}
    assert list(json.loads(answer.body)) == ["count", "max_model_len", "tokens", "token_strs"]


async def test_a_long_text_becomes_all_its_tokens() -> None:
    text = "Long words and short ones. " * 3000
    async with FakeUpstream(behaviour=relayed, root=DEMO) as upstream, running_gateway(upstream) as gateway:
        answer = await ask(gateway, "/tokenize", prompt=text, add_special_tokens=False)
        own = await gateway.tokenization.encode(text, model="demo", add_special_tokens=False)

    told = json.loads(answer.body)
    assert len(own.token_ids) > 1 << 13
    assert told["tokens"] == own.token_ids.tolist()
    assert told["count"] == len(own.token_ids)


async def test_tokens_become_their_text() -> None:
    async with FakeUpstream(behaviour=relayed, root=DEMO) as upstream, running_gateway(upstream) as gateway:
        tokens = json.loads((await ask(gateway, "/tokenize", prompt="Grüß Gott")).body)["tokens"]
        answer = await ask(gateway, "/detokenize", tokens=tokens)

    assert json.loads(answer.body) == {"prompt": "Grüß Gott"}


async def test_the_tokens_of_a_message_are_those_of_the_same_chat() -> None:
    async with FakeUpstream(behaviour=relayed, root=DEMO) as upstream, running_gateway(upstream) as gateway:
        counted = await ask(gateway, "/v1/messages/count_tokens", messages=CHAT)
        tokenized = await ask(gateway, "/tokenize", messages=CHAT)
        chat = await ask(gateway, "/v1/chat/completions", messages=CHAT)

    count = json.loads(tokenized.body)["count"]
    assert json.loads(counted.body) == {"input_tokens": count}
    assert chat.header("x-headrace-prompt-tokens") == str(count)
    assert counted.header("x-headrace-reason") == HERE


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/tokenize", {"prompt": "a", "messages": CHAT}),
        ("/tokenize", {"messages": CHAT, "add_special_tokens": True}),
        ("/tokenize", {"messages": CHAT, "chat_template": "x"}),
        ("/tokenize", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}),
        ("/tokenize", {"prompt": 5}),
        ("/detokenize", {"tokens": [1 << 30]}),
        ("/detokenize", {"tokens": "x"}),
        ("/v1/messages/count_tokens", {"messages": []}),
        ("/v1/chat/completions/render", {"messages": CHAT}),
    ],
)
async def test_what_is_an_engines_to_judge_goes_to_an_engine(path: str, fields: dict[str, object]) -> None:
    async with FakeUpstream(behaviour=relayed, root=DEMO) as upstream, running_gateway(upstream) as gateway:
        answer = await ask(gateway, path, **fields)

    assert json.loads(answer.body) == {"by": "engine"}
    assert answer.header("x-headrace-endpoint") == upstream.url


async def test_a_text_that_engines_may_tidy_goes_to_an_engine() -> None:
    async with FakeUpstream(behaviour=relayed, root=DEMO) as upstream, running_gateway(upstream) as gateway:
        tokens = json.loads((await ask(gateway, "/tokenize", prompt="Well , yes .")).body)["tokens"]
        answer = await ask(gateway, "/detokenize", tokens=tokens)

    assert json.loads(answer.body) == {"by": "engine"}


@pytest.mark.parametrize("settings", [{}, {"tokenizer": "remote", "tokenizer_path": (f"demo={DEMO}",)}])
async def test_without_a_tokenizer_of_its_own_the_gateway_relays(settings: dict[str, object]) -> None:
    async with FakeUpstream(behaviour=relayed) as upstream, running_gateway(upstream, **settings) as gateway:
        answer = await ask(gateway, "/tokenize", prompt="a")

    assert json.loads(answer.body) == {"by": "engine"}


async def test_where_engines_are_known_to_count_otherwise_they_are_asked() -> None:
    async with FakeUpstream(behaviour=relayed, root=DEMO) as upstream, running_gateway(upstream) as gateway:
        before = await ask(gateway, "/tokenize", prompt="a")
        route = "/v1/chat/completions"
        gateway.token_in.ledger.note_proof("differs", model="demo", endpoint=upstream.url, route=route)
        after = await ask(gateway, "/tokenize", prompt="a")

    assert (before.header("x-headrace-reason"), json.loads(after.body)) == (HERE, {"by": "engine"})
