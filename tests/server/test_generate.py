"""/inference/v1/generate, and the /render routes that write its requests, over a real socket."""

import json
from typing import Any

import pytest

from headrace.testing.fake_engine import FakeEngine

pytestmark = pytest.mark.integration

ROUTE = "/inference/v1/generate"


def body(**fields: Any) -> dict[str, Any]:
    return {"token_ids": list(b"hello"), "sampling_params": {}, **fields}


async def generated(server: Any, **fields: Any) -> Any:
    response = await server.http.post(ROUTE, json=body(**fields))
    assert response.status_code == 200, response.text
    return response.json()


async def chunks(server: Any, **fields: Any) -> list[Any]:
    async with server.http.stream("POST", ROUTE, json=body(stream=True, **fields)) as response:
        lines = [line async for line in response.aiter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


async def test_tokens_go_in_and_tokens_come_out(server: Any) -> None:
    answer = await generated(server, request_id="mine", sampling_params={"max_tokens": 3})
    assert answer.pop("created") > 1_700_000_000
    assert answer == {
        "request_id": "mine",
        "model": "fake-model",
        "output_mode": "tokens",
        "choices": [{"index": 0, "token_ids": list(b"hel"), "finish_reason": "length", "logprobs": None}],
        "usage": {
            "prompt_tokens": 5,
            "completion_tokens": 3,
            "total_tokens": 8,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
        "prompt_logprobs": None,
    }


async def test_without_max_tokens_the_context_is_the_limit(server: Any, engine: FakeEngine) -> None:
    answer = await generated(server, token_ids=[120] * 40)
    assert len(answer["choices"][0]["token_ids"]) == 40
    assert engine.latest_sampling_params is not None
    assert engine.latest_sampling_params.max_tokens is None


async def test_text_is_told_where_it_is_asked_for(server: Any, engine: FakeEngine) -> None:
    answer = await generated(server, output_mode="text", return_token_ids=True)
    assert answer["choices"][0]["text"] == "hello"
    assert answer["prompt_token_ids"] == list(b"hello")
    assert answer["output_mode"] == "text"


async def test_tokens_alone_are_not_detokenized_but_for_stop_strings(server: Any, engine: FakeEngine) -> None:
    await generated(server)
    assert engine.latest_sampling_params is not None
    assert not engine.latest_sampling_params.detokenize
    answer = await generated(server, sampling_params={"stop": ["l"]})
    assert engine.latest_sampling_params.detokenize
    assert answer["choices"][0]["stop_reason"] == "l"
    assert "text" not in answer["choices"][0]


async def test_a_stream_has_every_token_once_and_says_why_it_ended(server: Any) -> None:
    told = await chunks(server, request_id="mine", return_token_ids=True, stream_options={"include_usage": True})
    assert {chunk["request_id"] for chunk in told} == {"mine"}
    assert told[0]["prompt_token_ids"] == list(b"hello")
    choices = [choice for chunk in told for choice in chunk["choices"]]
    assert [token for choice in choices for token in choice["token_ids"]] == list(b"hello")
    assert [choice["finish_reason"] for choice in choices][-1] == "stop"
    assert not any(choice["finish_reason"] for choice in choices[:-1])
    assert told[-1]["usage"]["completion_tokens"] == 5


async def test_a_stream_of_text(server: Any) -> None:
    told = await chunks(server, output_mode="text")
    assert "".join(choice["text"] for chunk in told for choice in chunk["choices"]) == "hello"
    assert not any("usage" in chunk for chunk in told)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"token_ids": []}, "token_ids"),
        ({"token_ids": [-1]}, "token_ids[0]"),
        ({"token_ids": [0] * 5000}, "token_ids"),
        ({"sampling_params": None}, "sampling_params"),
        ({"sampling_params": {"temperature": "hot"}}, "sampling_params.temperature"),
        ({"sampling_params": {"temperature": -1}}, "sampling_params.temperature"),
        ({"sampling_params": {"detokenize": False}, "output_mode": "text"}, "sampling_params.detokenize"),
        ({"sampling_params": {"prompt_logprobs": 1}, "stream": True}, "sampling_params.prompt_logprobs"),
        ({"sampling_params": {"thinking_token_budget": 5}}, "sampling_params.thinking_token_budget"),
        ({"output_mode": "images"}, "output_mode"),
        ({"request_id": ""}, "request_id"),
        ({"features": {"mm_hashes": {}}}, "features"),
        ({"kv_transfer_params": {"x": 1}}, "kv_transfer_params"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
    ],
)
async def test_a_bad_request_names_the_field(server: Any, fields: dict[str, Any], param: str) -> None:
    response = await server.http.post(ROUTE, json=body(**fields))
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_an_id_in_use_is_refused(server: Any, engine: FakeEngine) -> None:
    engine.hold(after_tokens=1)
    async with server.http.stream("POST", ROUTE, json=body(request_id="mine", stream=True)) as response:
        await anext(response.aiter_lines())
        again = await server.http.post(ROUTE, json=body(request_id="mine"))
        assert (again.status_code, again.json()["error"]["param"]) == (400, "request_id")
        assert server.live.engine_ids() == ["mine"], "a refused twin must not make the server forget the first"
    await engine.until(lambda: engine.num_live == 0)


# -- rendering


async def test_a_chat_is_rendered_to_what_generate_takes(server: Any, engine: FakeEngine) -> None:
    chat = {"messages": [{"role": "user", "content": "hi"}], "temperature": 0.5, "max_tokens": 7, "stop": "x"}
    rendered = (await server.http.post("/v1/chat/completions/render", json=chat)).json()
    assert rendered["token_ids"] == [257, *b"user\nhi", 258, *b"\n", 257, *b"assistant\n"]
    assert rendered["sampling_params"]["temperature"] == 0.5
    assert rendered["sampling_params"]["max_tokens"] == 7
    assert rendered["request_id"].startswith("chatcmpl-")
    assert engine.statistics().num_started == 0

    direct = (await server.http.post("/v1/chat/completions", json=chat)).json()
    params = engine.latest_sampling_params
    through = await generated(server, **{**rendered, "output_mode": "text"})
    assert through["choices"][0]["text"] == direct["choices"][0]["message"]["content"]
    assert through["usage"] == direct["usage"]
    assert engine.latest_sampling_params == params


async def test_rendering_says_how_much_room_there_is(server: Any) -> None:
    chat = {"messages": [{"role": "user", "content": "hi"}]}
    rendered = (await server.http.post("/v1/chat/completions/render", json=chat)).json()
    assert rendered["sampling_params"]["max_tokens"] == 4096 - len(rendered["token_ids"])


async def test_completions_are_rendered_one_by_one(server: Any) -> None:
    rendered = (await server.http.post("/v1/completions/render", json={"prompt": ["a", "bc"]})).json()
    assert [one["token_ids"] for one in rendered] == [[97], [98, 99]]
    assert [one["sampling_params"]["max_tokens"] for one in rendered] == [16, 16]
    assert len({one["request_id"] for one in rendered}) == 2


@pytest.mark.parametrize("route", ["/v1/chat/completions/render", "/v1/completions/render"])
async def test_rendering_refuses_what_generating_refuses(server: Any, route: str) -> None:
    asked = {"messages": [{"role": "user", "content": "x"}], "prompt": "x", "temperature": -1}
    response = await server.http.post(route, json=asked)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "temperature")
