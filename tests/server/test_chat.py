"""/v1/chat/completions, whole and streamed."""

from typing import Any

import msgspec
import pytest

from headrace.openai.sse import SseDecoder
from headrace.testing.fake_engine import FakeEngine

pytestmark = pytest.mark.integration

MESSAGES = [{"role": "user", "content": "hi"}]
ANSWER = "user\nhi\nassistant\n"  # the fake engine says the prompt again, special tokens skipped


async def post_stream(server: Any, **body: object) -> list[Any]:
    response = await server.http.post("/v1/chat/completions", json={"messages": MESSAGES, "stream": True, **body})
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    return [
        event if event == b"[DONE]" else msgspec.json.decode(event) for event in SseDecoder().feed(response.content)
    ]


async def test_a_chat_is_answered_by_an_assistant_message(server: Any) -> None:
    response = await server.http.post("/v1/chat/completions", json={"messages": MESSAGES, "max_tokens": 7})
    answer = response.json()
    assert response.status_code == 200
    assert answer["id"].startswith("chatcmpl-")
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "fake-model"
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "user\nh", "refusal": None},
            "logprobs": None,
            "finish_reason": "length",
        }
    ]
    assert answer["usage"] == {
        "prompt_tokens": 21,
        "completion_tokens": 7,
        "total_tokens": 28,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


async def test_a_chat_without_a_limit_ends_where_the_model_ends(server: Any) -> None:
    answer = (await server.http.post("/v1/chat/completions", json={"messages": MESSAGES})).json()
    assert answer["choices"][0]["message"]["content"] == ANSWER
    assert answer["choices"][0]["finish_reason"] == "stop"


async def test_a_stream_opens_with_the_role_and_closes_with_the_reason_and_done(server: Any) -> None:
    *chunks, done = await post_stream(server, max_tokens=4)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert done == b"[DONE]"
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert [choice["delta"] for choice in choices[1:-1]] == [{"content": "u"}, {"content": "s"}, {"content": "e"}]
    assert choices[-1]["delta"] == {}
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["length"]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert all("usage" not in chunk for chunk in chunks)


async def test_a_stream_says_the_same_as_the_whole_answer(server: Any) -> None:
    messages = [{"role": "user", "content": "Grüße, 世界! 🌊 how are you?"}]
    whole = (await server.http.post("/v1/chat/completions", json={"messages": messages})).json()
    *chunks, _ = await post_stream(server, messages=messages)
    streamed = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert streamed == whole["choices"][0]["message"]["content"]


async def test_usage_comes_last_when_asked_for(server: Any) -> None:
    *_, usage, done = await post_stream(server, max_tokens=3, stream_options={"include_usage": True})
    assert done == b"[DONE]"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 3
    assert usage["usage"]["total_tokens"] == 24


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
async def test_both_names_of_the_limit_work(server: Any, field: str) -> None:
    answer = (await server.http.post("/v1/chat/completions", json={"messages": MESSAGES, field: 2})).json()
    assert answer["usage"]["completion_tokens"] == 2


async def test_token_ids_skip_the_template_and_the_tokenizer(server: Any) -> None:
    body = {"prompt_token_ids": list(b"ready-made"), "max_tokens": 5}
    answer = (await server.http.post("/v1/chat/completions", json=body)).json()
    assert answer["choices"][0]["message"]["content"] == "ready"
    assert answer["usage"]["prompt_tokens"] == 10


async def test_a_stop_string_ends_the_answer_and_is_named(server: Any) -> None:
    body = {"messages": MESSAGES, "stop": ["hi", "never"]}
    choice = (await server.http.post("/v1/chat/completions", json=body)).json()["choices"][0]
    assert choice["message"]["content"] == "user\n"
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "hi")


async def test_sampling_fields_reach_the_engine(server: Any) -> None:
    body = {"messages": MESSAGES, "skip_special_tokens": False, "stop": "assistant", "include_stop_str_in_output": True}
    choice = (await server.http.post("/v1/chat/completions", json=body)).json()["choices"][0]
    assert choice["message"]["content"] == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant"


async def test_a_final_message_can_be_continued(server: Any) -> None:
    messages = [*MESSAGES, {"role": "assistant", "content": "I begin"}]
    body = {"messages": messages, "continue_final_message": True}
    choice = (await server.http.post("/v1/chat/completions", json=body)).json()["choices"][0]
    assert choice["message"]["content"].endswith("assistant\nI begin")


async def test_text_parts_are_read_as_text(server: Any) -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    answer = (await server.http.post("/v1/chat/completions", json={"messages": messages})).json()
    assert answer["choices"][0]["message"]["content"] == ANSWER


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"messages": []}, 400, "messages"),
        ({}, 400, "messages"),
        ({"messages": [{"role": "user", "content": 5}]}, 400, "messages[0].content"),
        ({"messages": [{"content": "x"}]}, 400, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "messages[0].content[0].type"),
        ({"messages": "hi"}, 400, "messages"),
        ({"messages": ["hi"]}, 400, "messages[0]"),
        ({"messages": MESSAGES, "temperature": 3}, 400, "temperature"),
        ({"messages": MESSAGES, "top_p": 0}, 400, "top_p"),
        ({"messages": MESSAGES, "logprobs": True, "top_logprobs": 21}, 400, "top_logprobs"),
        ({"messages": MESSAGES, "logprobs": True, "top_logprobs": -1}, 400, "top_logprobs"),
        ({"messages": MESSAGES, "stop": ""}, 400, "stop"),
        ({"messages": MESSAGES, "seed": -5}, 400, "seed"),
        ({"messages": MESSAGES, "min_tokens": 9, "max_tokens": 3}, 400, "min_tokens"),
        ({"messages": MESSAGES, "max_completion_tokens": 0}, 400, "max_completion_tokens"),
        ({"messages": MESSAGES, "tools": [{"type": "function"}]}, 400, "tools[0].function"),
        ({"messages": MESSAGES, "n": 2}, 400, "n"),
        ({"messages": MESSAGES, "stream_options": {"include_usage": True}}, 400, "stream_options"),
        ({"prompt_token_ids": []}, 400, "prompt_token_ids"),
        ({"messages": MESSAGES, "model": "other"}, 404, "model"),
        ({"messages": [{"role": "user", "content": "x" * 5000}]}, 400, "messages"),
        ({"messages": MESSAGES, "max_tokens": 1_000_000}, 400, "messages"),
        ({"messages": [{"role": "user", "content": "x" * 5000}], "stream": True}, 400, "messages"),
        ({"messages": MESSAGES, "stream": True, "temperature": -1}, 400, "temperature"),
    ],
)
async def test_a_bad_chat_is_refused_with_the_field_named(
    server: Any, engine: FakeEngine, body: dict[str, object], status: int, param: str
) -> None:
    response = await server.http.post("/v1/chat/completions", json=body)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (status, param)
    assert set(error) == {"message", "type", "param", "code"}
    assert engine.num_live == 0
