"""/v1/completions: the forms of a prompt, whole and streamed."""

from collections import defaultdict
from typing import Any

import msgspec
import pytest

from headrace.openai.sse import DONE_DATA, SseDecoder
from headrace.testing.fake_engine import FakeEngine

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("hello", ["hello"]),
        (["hello", "world!"], ["hello", "world!"]),
        (list(b"hello"), ["hello"]),
        ([list(b"hello"), list(b"you")], ["hello", "you"]),
    ],
)
async def test_every_form_of_a_prompt_is_answered_in_order(server: Any, prompt: object, texts: list[str]) -> None:
    answer = (await server.http.post("/v1/completions", json={"prompt": prompt})).json()
    assert answer["id"].startswith("cmpl-")
    assert answer["object"] == "text_completion"
    assert [(choice["index"], choice["text"]) for choice in answer["choices"]] == list(enumerate(texts))
    assert all(choice["finish_reason"] == "stop" for choice in answer["choices"])
    num_tokens = sum(map(len, texts))
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["completion_tokens"] == num_tokens


async def test_sixteen_tokens_are_the_default_and_null_is_the_rest_of_the_context(server: Any) -> None:
    prompt = "x" * 40
    short = (await server.http.post("/v1/completions", json={"prompt": prompt})).json()
    whole = (await server.http.post("/v1/completions", json={"prompt": prompt, "max_tokens": None})).json()
    assert (short["choices"][0]["text"], short["choices"][0]["finish_reason"]) == ("x" * 16, "length")
    assert (whole["choices"][0]["text"], whole["choices"][0]["finish_reason"]) == (prompt, "stop")


async def test_a_stream_of_many_prompts_tells_them_apart_by_index(server: Any) -> None:
    prompts = ["first prompt", "2nd", "the third one"]
    body = {"prompt": prompts, "stream": True, "stream_options": {"include_usage": True}}
    response = await server.http.post("/v1/completions", json=body)
    *events, usage, done = SseDecoder().feed(response.content)
    texts: dict[int, str] = defaultdict(str)
    reasons: dict[int, list[str]] = defaultdict(list)
    for event in events:
        (choice,) = msgspec.json.decode(event)["choices"]
        assert not reasons[choice["index"]], "nothing follows the reason"
        texts[choice["index"]] += choice["text"]
        if choice["finish_reason"]:
            reasons[choice["index"]].append(choice["finish_reason"])
    assert [texts[index] for index in range(3)] == prompts
    assert reasons == {0: ["stop"], 1: ["stop"], 2: ["stop"]}
    assert msgspec.json.decode(usage)["usage"]["completion_tokens"] == sum(map(len, prompts))
    assert done == DONE_DATA


@pytest.mark.parametrize("stream", [False, True])
async def test_one_bad_prompt_of_many_refuses_the_request_and_leaves_nothing(
    server: Any, engine: FakeEngine, stream: bool
) -> None:
    engine.hold()
    body = {"prompt": ["fine", "x" * 5000, "fine too"], "stream": stream}
    response = await server.http.post("/v1/completions", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert engine.num_live == 0
    assert server.live.statistics().num_generations == 0


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [-1]}, "prompt[0]"),
        ({"prompt": None}, "prompt"),
        ({"prompt": ["a"] * 129}, "prompt"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": "a", "logprobs": 1}, "logprobs"),
        ({"prompt": "a", "best_of": 2}, "best_of"),
    ],
)
async def test_a_bad_completion_is_refused_with_the_field_named(
    server: Any, body: dict[str, object], param: str
) -> None:
    response = await server.http.post("/v1/completions", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
