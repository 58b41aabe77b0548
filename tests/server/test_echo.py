"""/v1/completions with `echo` and max_tokens 0: the prompt alone."""

import json
from typing import Any

import pytest

pytestmark = pytest.mark.integration


async def complete(server: Any, **fields: Any) -> Any:
    return await server.http.post("/v1/completions", json={"prompt": "hello", "echo": True, "max_tokens": 0, **fields})


async def test_the_answer_is_the_prompt_and_nothing_is_counted_as_generated(server: Any) -> None:
    answer = (await complete(server)).json()
    assert [(choice["text"], choice["finish_reason"]) for choice in answer["choices"]] == [("hello", "length")]
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (5, 0)
    assert answer["usage"]["total_tokens"] == 5


async def test_every_prompt_is_repeated(server: Any) -> None:
    answer = (await complete(server, prompt=["one", "two"])).json()
    assert [choice["text"] for choice in answer["choices"]] == ["one", "two"]


async def test_a_stream_repeats_the_prompt_once(server: Any) -> None:
    response = await complete(server, stream=True, stream_options={"include_usage": True})
    *events, done = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    chunks = [json.loads(event) for event in events]
    assert done == "[DONE]"
    assert "".join(choice["text"] for chunk in chunks for choice in chunk["choices"]) == "hello"
    assert [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]][-1] == "length"
    assert chunks[-1]["usage"]["completion_tokens"] == 0


async def test_without_an_echo_no_tokens_are_no_answer(server: Any) -> None:
    response = await complete(server, echo=False)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "max_tokens")
