"""The newer routes through the gateway to engines with a trained model, with official clients."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anthropic
import httpx
import pytest

import openai
from headrace.cli.fleet import Fleet
from tests.integration.service import Service, start_service

pytestmark = pytest.mark.integration

SYSTEM = "You are a helpful assistant."
QUESTION: Any = [{"role": "user", "content": "What is 3 plus 4?"}]


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    """One whose gateway waits for its tokenizer as long as it takes."""
    with Fleet() as fleet:
        yield start_service(fleet, "--tokenize-timeout-s", "20s")


@pytest.fixture
async def http(service: Service) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=service.url, timeout=30) as client:
        yield client


@pytest.fixture
async def messages(service: Service) -> AsyncIterator[Any]:
    async with anthropic.AsyncAnthropic(base_url=service.url, api_key="none", max_retries=0) as client:
        yield client.messages


async def parities(service: Service) -> dict[str, int]:
    """How many answers were counted as the engine counts them, and how many were not."""
    async with httpx.AsyncClient() as client:
        text = (await client.get(f"{service.gateway.admin_url}/metrics")).text
    found = {"exact": 0, "drift": 0}
    for line in text.splitlines():
        if line.startswith("headrace_parity_answers_total"):
            for result in found:
                found[result] += int(float(line.rsplit(" ", 1)[1])) if f'result="{result}"' in line else 0
    return found


async def reach(service: Service, expected: dict[str, int]) -> None:
    """Return once answers are counted so: that is a moment after their clients have them."""
    found: dict[str, int] = {}
    try:
        async with asyncio.timeout(20):
            while (found := await parities(service)) != expected:
                await asyncio.sleep(0.05)
    except TimeoutError:
        assert found == expected


async def test_a_message_stream_is_counted_as_its_engine_counts_it(service: Service, messages: Any) -> None:
    before = await parities(service)
    asked = {"model": "demo", "system": SYSTEM, "messages": QUESTION}
    async with messages.stream(max_tokens=16, **asked) as stream:
        message = await stream.get_final_message()
    counted = await messages.count_tokens(**asked)

    assert message.content[0].text
    assert message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0) == counted.input_tokens
    await reach(service, before | {"exact": before["exact"] + 1})


async def test_a_response_is_counted_as_its_engine_counts_it(service: Service) -> None:
    before = await parities(service)
    async with openai.AsyncOpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0) as client:
        raw = await client.responses.with_raw_response.create(
            model="demo", instructions=SYSTEM, input="What is 3 plus 4?", max_output_tokens=16
        )
        async with client.responses.stream(model="demo", input="Tell me a story.", max_output_tokens=8) as stream:
            async for _ in stream:
                pass

    response = raw.parse()
    assert response.usage is not None
    assert raw.headers["x-headrace-prompt-tokens"] == str(response.usage.input_tokens)
    await reach(service, before | {"exact": before["exact"] + 2})


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"prompt": "Hello, world", "return_token_strs": True}),
        ("/tokenize", {"prompt": "Hello, world", "add_special_tokens": False}),
        ("/tokenize", {"messages": QUESTION}),
        ("/tokenize", {"messages": [*QUESTION, {"role": "assistant", "content": "7"}], "continue_final_message": True}),
        ("/detokenize", {"tokens": [40, 41, 42, 1, 2]}),
        ("/v1/messages/count_tokens", {"messages": QUESTION, "system": SYSTEM}),
    ],
)
async def test_what_the_gateway_answers_is_the_engines_answer_byte_for_byte(
    service: Service, http: httpx.AsyncClient, path: str, body: dict[str, Any]
) -> None:
    here = await http.post(path, json={"model": "demo"} | body)
    engine = service.engines[0].address
    assert engine is not None
    async with httpx.AsyncClient(timeout=30) as client:
        there = await client.post(engine.url + path, json={"model": "demo"} | body)

    assert here.headers["x-headrace-reason"] == "answered by the gateway"
    assert (here.status_code, here.content) == (there.status_code, there.content)


async def test_what_is_rendered_can_be_generated(http: httpx.AsyncClient) -> None:
    asked = {"model": "demo", "messages": QUESTION, "max_tokens": 4, "temperature": 0}
    rendered = await http.post("/v1/chat/completions/render", json=asked)
    generated = await http.post("/inference/v1/generate", json=rendered.json() | {"output_mode": "text"})
    chat = await http.post("/v1/chat/completions", json=asked)

    prompt_tokens = chat.json()["usage"]["prompt_tokens"]
    assert len(rendered.json()["token_ids"]) == prompt_tokens
    assert generated.headers["x-headrace-prompt-tokens"] == str(prompt_tokens)
    assert generated.json()["choices"][0]["text"] == chat.json()["choices"][0]["message"]["content"]


async def test_embeddings_are_counted_as_their_engine_counts_them(http: httpx.AsyncClient) -> None:
    answer = await http.post("/v1/embeddings", json={"model": "demo", "input": ["Hello, world", "Good bye"]})

    assert answer.status_code == 200, answer.text
    assert answer.headers["x-headrace-prompt-tokens"] == str(answer.json()["usage"]["prompt_tokens"])
