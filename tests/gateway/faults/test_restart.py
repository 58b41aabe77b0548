"""An engine restarts with an empty cache: what was known of the old one is put right by the first answer."""

import json

import pytest

from headrace.gateway.app import Gateway
from headrace.testing.counting_engine import CountingEngine
from headrace.testing.fake_upstream import FakeUpstream
from tests.gateway.support import chat_request, exchange, running_gateway

pytestmark = pytest.mark.integration

PROMPTS = [[topic] * 65 for topic in range(5)]


async def ask(gateway: Gateway, prompt: list[int]) -> tuple[str, int, int]:
    """The endpoint, the cached tokens that were predicted, and those that it had."""
    body = json.dumps({"model": "demo", "prompt": prompt, "max_tokens": 1}).encode()
    answer = await exchange(gateway, chat_request(body, path="/v1/completions"))
    assert answer.status == 200
    had = json.loads(answer.body)["usage"]["prompt_tokens_details"]["cached_tokens"]
    return (
        answer.header("x-headrace-endpoint") or "",
        int(answer.header("x-headrace-cached-tokens-predicted") or -1),
        had,
    )


async def test_after_a_restart_one_answer_corrects_what_was_known_of_the_cache() -> None:
    engine = CountingEngine()
    async with FakeUpstream(behaviour=engine) as upstream, running_gateway(upstream) as gateway:
        first = [(await ask(gateway, prompt))[1:] for prompt in PROMPTS]
        warm = [(await ask(gateway, prompt))[1:] for prompt in PROMPTS]
        await upstream.stop()
        engine.forget()
        await upstream.start()
        surprise = (await ask(gateway, PROMPTS[-1]))[1:]
        after = [(await ask(gateway, prompt))[1:] for prompt in PROMPTS]

    assert first == [(0, 0)] * 5
    assert warm == [(64, 64)] * 5
    assert surprise == (64, 0)
    assert after == [(0, 0)] * 4 + [(64, 64)]


async def test_a_prefix_that_is_lost_does_not_hold_its_requests_on_a_busier_endpoint() -> None:
    engines = [CountingEngine(), CountingEngine()]
    async with (
        FakeUpstream(behaviour=engines[0]) as one,
        FakeUpstream(behaviour=engines[1]) as two,
        running_gateway(one, two) as gateway,
    ):
        holder, _, _ = await ask(gateway, PROMPTS[0])
        again, predicted, had = await ask(gateway, PROMPTS[0])
        for engine in engines:
            engine.forget()
        await ask(gateway, PROMPTS[0])
        last = await ask(gateway, PROMPTS[0])

    assert (again, predicted, had) == (holder, 64, 64)
    assert last[1] == last[2]
