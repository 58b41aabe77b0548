"""The official client, over a real socket."""

import asyncio
from typing import Any

import pytest

import openai
from headrace.testing.fake_engine import FakeEngine

pytestmark = pytest.mark.integration


def asked(text: str) -> Any:
    return [{"role": "user", "content": text}]


def answered(text: str) -> str:
    return f"user\n{text}\nassistant\n"


async def test_it_gets_a_chat_answer_with_usage(server: Any) -> None:
    answer = await server.openai.chat.completions.create(model="fake-model", messages=asked("hi"))
    assert answer.choices[0].message.content == answered("hi")
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


async def test_it_streams_a_chat(server: Any) -> None:
    stream = await server.openai.chat.completions.create(
        model="fake-model", messages=asked("hi"), stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == answered("hi")
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage.completion_tokens == 21


async def test_it_gets_and_streams_completions(server: Any) -> None:
    answer = await server.openai.completions.create(model="fake-model", prompt=["one", "two"])
    stream = await server.openai.completions.create(model="fake-model", prompt="streamed", stream=True)
    assert [choice.text for choice in answer.choices] == ["one", "two"]
    assert "".join([chunk.choices[0].text async for chunk in stream]) == "streamed"


async def test_it_passes_fields_of_ours(server: Any) -> None:
    answer = await server.openai.chat.completions.create(
        model="fake-model", messages=[], extra_body={"prompt_token_ids": list(b"raw"), "top_k": 5, "min_p": 0.1}
    )
    assert answer.choices[0].message.content == "raw"


async def test_it_lists_models(server: Any) -> None:
    assert [model.id async for model in server.openai.models.list()] == ["fake-model"]
    assert (await server.openai.models.retrieve("fake-model")).max_model_len == 4096


async def test_it_raises_its_own_errors(server: Any, engine: FakeEngine) -> None:
    create = server.openai.chat.completions.create
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        await create(model="gpt-5", messages=asked("hi"))
    with pytest.raises(openai.BadRequestError) as refused:
        await create(model="fake-model", messages=asked("hi"), n=3)
    assert (refused.value.param, refused.value.code) == ("n", "unsupported_parameter")
    with pytest.raises(openai.BadRequestError) as too_long:
        await create(model="fake-model", messages=asked("x" * 5000), stream=True)
    assert too_long.value.code == "context_length_exceeded"
    engine.die()
    with pytest.raises(openai.InternalServerError) as dead:
        await create(model="fake-model", messages=asked("hi"))
    assert dead.value.status_code == 503


async def test_it_raises_on_an_error_event(server: Any, engine: FakeEngine) -> None:
    engine.hold(after_tokens=3)
    stream = await server.openai.completions.create(model="fake-model", prompt="hello", stream=True)
    await anext(stream)
    engine.die("the core was killed")
    with pytest.raises(openai.APIError, match="the core was killed"):
        _ = [chunk async for chunk in stream]


async def test_closing_its_stream_aborts(server: Any, engine: FakeEngine) -> None:
    engine.hold(after_tokens=2)
    stream = await server.openai.completions.create(model="fake-model", prompt="hello", stream=True)
    await anext(stream)
    await stream.close()
    await engine.until(lambda: engine.num_live == 0)
    assert engine.statistics().num_aborted == 1


async def test_a_client_that_times_out_aborts(server: Any, engine: FakeEngine) -> None:
    engine.hold()
    for timeout_s in (0.2, 1, 5):  # on a busy machine the first may be over before the server has seen anything
        with pytest.raises(openai.APITimeoutError):
            await server.openai.with_options(timeout=timeout_s).chat.completions.create(
                model="fake-model", messages=asked("hi")
            )
        if engine.statistics().num_started:
            break
    await engine.until(lambda: engine.num_live == 0)
    assert engine.statistics().num_aborted == engine.statistics().num_started > 0


async def test_its_synchronous_form_streams(server: Any) -> None:
    def use() -> str:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            stream = client.chat.completions.create(model="fake-model", messages=asked("hi"), stream=True)
            return "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    assert await asyncio.to_thread(use) == answered("hi")


async def test_sixty_four_streams_at_once_each_get_their_own_answer(server: Any, engine: FakeEngine) -> None:
    engine.hold(after_tokens=5)

    async def one(number: int) -> str:
        stream = await server.openai.completions.create(
            model="fake-model", prompt=f"stream number {number} of many", max_tokens=100, stream=True
        )
        return "".join([chunk.choices[0].text async for chunk in stream])

    async with asyncio.TaskGroup() as group:
        streams = [group.create_task(one(number)) for number in range(64)]
        await engine.until(lambda: engine.num_live == 64)
        engine.release()
    assert [stream.result() for stream in streams] == [f"stream number {number} of many" for number in range(64)]
