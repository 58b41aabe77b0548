"""A client, the gateway, two engines, a trained model: answers are right, and nothing is left behind."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
import msgspec
import pytest

import openai
from tests.integration.service import Service

pytestmark = pytest.mark.integration

SETTLE_TIMEOUT_S = 5.0
QUESTIONS = [f"What is {n} plus {3 * n % 17}?" for n in range(16)] + [
    f"Tell me a short story about a {animal}."
    for animal in (
        *("fox", "cat", "dog", "bear", "owl", "horse", "mouse", "rabbit"),
        *("wolf", "lion", "duck", "frog", "sheep", "goat", "hen", "bee"),
    )
]


@pytest.fixture
async def client(service: Service) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0) as client:
        yield client


async def streamed(client: openai.AsyncOpenAI, question: str) -> str:
    stream = await client.chat.completions.create(
        model="demo", messages=[{"role": "user", "content": question}], temperature=0, max_tokens=120, stream=True
    )
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])


async def alone(url: str, question: str) -> str:
    """The answer of one engine that has nothing else to do."""
    body = {
        "model": "demo",
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": 120,
    }
    async with httpx.AsyncClient(timeout=30) as client:
        answer = await client.post(f"{url}/v1/chat/completions", json=body)
    return str(answer.raise_for_status().json()["choices"][0]["message"]["content"])


async def reaches(value: float, count: Callable[[], Awaitable[float]]) -> None:
    """Return once `count` is `value`; fail with the last one after a deadline. The gateway's state is a second old."""
    last: float | None = None
    try:
        async with asyncio.timeout(SETTLE_TIMEOUT_S):
            while (last := await count()) != value:
                await asyncio.sleep(0.02)
    except TimeoutError:
        pytest.fail(f"still {last} after {SETTLE_TIMEOUT_S} s")


async def test_the_official_client_streams_an_answer_that_stops_by_itself(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": "What is 12 plus 7?"}],
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)

    assert "19" in text
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert len(chunks) > 3
    assert chunks[-1].usage is not None


async def test_32_concurrent_clients_get_the_answers_that_each_prompt_gets_alone(
    service: Service, client: openai.AsyncOpenAI
) -> None:
    engine = service.engines[0].address
    assert engine is not None
    expected = [await alone(engine.url, question) for question in QUESTIONS]

    answers = await asyncio.gather(*(streamed(client, question) for question in QUESTIONS))

    assert answers == expected
    assert len(set(answers)) > len(QUESTIONS) // 2


async def test_both_engines_take_part(service: Service) -> None:
    body = {"model": "demo", "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 4}
    async with httpx.AsyncClient(timeout=30) as client:
        url = f"{service.url}/v1/chat/completions"
        answers = await asyncio.gather(*(client.post(url, json=body) for _ in range(8)))

    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.headers["x-headrace-endpoint"] for answer in answers}) == 2


async def test_the_gateway_predicts_the_prompt_tokens_that_the_engine_uses(service: Service) -> None:
    async with httpx.AsyncClient(timeout=30) as client:
        for messages in (
            [{"role": "user", "content": "What is 3 plus 4?"}],
            [
                {"role": "system", "content": "You are a helpful assistant."},
                {"role": "user", "content": "Héllo ✓ <|im_end|> 你好"},
                {"role": "assistant", "content": "Hello."},
                {"role": "user", "content": [{"type": "text", "text": "And now?"}]},
            ],
        ):
            body = {"model": "demo", "messages": messages, "max_tokens": 4}
            answer = await client.post(f"{service.url}/v1/chat/completions", json=body)
            used = answer.raise_for_status().json()["usage"]["prompt_tokens"]
            assert int(answer.headers["x-headrace-prompt-tokens"]) == used


async def test_a_client_that_leaves_mid_stream_leaves_nothing_running(service: Service) -> None:
    body = {
        "model": "demo",
        "messages": [{"role": "user", "content": "Tell me a short story about a fox."}],
        "stream": True,
        "max_tokens": 1900,
        "ignore_eos": True,
    }
    async with (
        httpx.AsyncClient(timeout=30) as client,
        client.stream("POST", f"{service.url}/v1/chat/completions", json=body) as answer,
    ):
        received = answer.aiter_bytes()  # kept: httpx closes the connection when it is collected
        await anext(received)
        await reaches(1, service.in_flight)
        await reaches(1, service.running)

    await reaches(0, service.in_flight)
    await reaches(0, service.running)


async def test_a_prompt_over_the_context_is_refused_before_an_engine_sees_it(service: Service) -> None:
    body = {"model": "demo", "messages": [{"role": "user", "content": "fox " * 5000}]}
    async with httpx.AsyncClient(timeout=30) as client:
        answer = await client.post(f"{service.url}/v1/chat/completions", json=body)

    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert "x-headrace-endpoint" not in answer.headers


async def test_completions_tokenize_and_models_pass_through(service: Service) -> None:
    async with httpx.AsyncClient(base_url=service.url, timeout=30) as client:
        models = (await client.get("/v1/models")).json()
        completion = await client.post("/v1/completions", json={"model": "demo", "prompt": "Once upon a time"})
        tokens = (await client.post("/tokenize", json={"model": "demo", "prompt": "Once upon a time"})).json()
        back = (await client.post("/detokenize", json={"model": "demo", "tokens": tokens["tokens"]})).json()

    assert [model["id"] for model in models["data"]] == ["demo"]
    assert completion.json()["usage"]["prompt_tokens"] == tokens["count"]
    assert back["prompt"] == "Once upon a time"


async def test_unknown_models_are_refused_in_openais_form(service: Service) -> None:
    async with httpx.AsyncClient(timeout=30) as client:
        body = {"model": "gpt-9", "messages": [{"role": "user", "content": "Hello"}]}
        answer = await client.post(f"{service.url}/v1/chat/completions", json=body)

    error = msgspec.convert(answer.json()["error"], dict[str, str | None])
    assert answer.status_code == 404
    assert "gpt-9" in (error["message"] or "")
    assert error["code"] == "model_not_found"
