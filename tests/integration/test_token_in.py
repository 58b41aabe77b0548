"""Real engines take token ids in place of text: the answers are the same, and every count agrees."""

import asyncio
from collections.abc import Iterator, Mapping

import httpx
import pytest

from headrace.cli.fleet import Fleet
from tests.integration.service import Service, start_service

pytestmark = pytest.mark.integration

TIMEOUT_S = 20.0
CHATS: tuple[list[dict[str, object]], ...] = (
    [{"role": "user", "content": "What is 3 plus 4?"}],
    [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "Héllo ✓ <|im_end|> 你好"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": [{"type": "text", "text": "Tell me a short story about a fox."}]},
    ],
)


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with Fleet() as fleet:
        yield start_service(fleet, "--token-in-min-tokens", "1", "--token-in-audit-every", "1000000")


def body_of(messages: list[dict[str, object]], **fields: object) -> dict[str, object]:
    return {"model": "demo", "messages": messages, "temperature": 0, "max_tokens": 24} | fields


async def by_ids(client: httpx.AsyncClient, service: Service, body: Mapping[str, object], route: str) -> httpx.Response:
    """The answer that the gateway's ids get; it may have to find out first that the engines take them."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            answer = (await client.post(f"{service.url}/v1/{route}", json=body)).raise_for_status()
            if answer.headers["x-headrace-token-in"] == "yes":
                return answer
            await asyncio.sleep(0.05)


async def directly(client: httpx.AsyncClient, service: Service, body: Mapping[str, object], route: str) -> object:
    """The answer that an engine gives to the text."""
    address = service.engines[0].address
    assert address is not None
    return (await client.post(f"{address.url}/v1/{route}", json=body)).raise_for_status().json()


def told(answer: object) -> tuple[object, ...]:
    """What must not depend on how the prompt came."""
    assert isinstance(answer, dict)
    (choice,) = answer["choices"]
    usage = answer["usage"]
    content = choice["message"] if "message" in choice else choice["text"]
    return content, choice["finish_reason"], usage["prompt_tokens"], usage["completion_tokens"]


async def test_chats_by_ids_get_the_answers_and_the_usage_of_the_text(service: Service) -> None:
    async with httpx.AsyncClient(timeout=30) as client:
        for messages in CHATS:
            body = body_of(messages)
            answer = await by_ids(client, service, body, "chat/completions")

            assert told(answer.json()) == told(await directly(client, service, body, "chat/completions"))
            assert int(answer.headers["x-headrace-prompt-tokens"]) == answer.json()["usage"]["prompt_tokens"]


async def test_completions_by_ids_too(service: Service) -> None:
    body = {"model": "demo", "prompt": "Once upon a time", "temperature": 0, "max_tokens": 24}
    async with httpx.AsyncClient(timeout=30) as client:
        answer = await by_ids(client, service, body, "completions")

        assert told(answer.json()) == told(await directly(client, service, body, "completions"))


async def test_cached_tokens_are_those_that_were_predicted_turn_by_turn(service: Service) -> None:
    """Answers are of one token, since what an engine caches of its answers no gateway without KV events can know."""
    messages: list[dict[str, object]] = [{"role": "user", "content": "Tell me about owls, " * 20}]
    async with httpx.AsyncClient(timeout=30) as client:
        for _ in range(4):
            answer = await by_ids(client, service, body_of(messages, max_tokens=1), "chat/completions")
            cached = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert int(answer.headers["x-headrace-cached-tokens-predicted"]) == cached
            messages += [{"role": "assistant", "content": "Owls"}, {"role": "user", "content": "And then? " * 10}]
        assert cached > 0


async def test_nothing_has_drifted_in_all_this(service: Service) -> None:
    async with httpx.AsyncClient(timeout=30) as client, asyncio.timeout(TIMEOUT_S):
        body = body_of(CHATS[0])
        await by_ids(client, service, body, "chat/completions")
        while not (parity := (await client.get(f"{service.gateway.admin_url}/state")).json()["parity"]):
            await asyncio.sleep(0.05)  # the state is a second old

    assert [(one["num_drift"], one["drifting"], one["demoted"]) for one in parity] == [(0, [], [])]
