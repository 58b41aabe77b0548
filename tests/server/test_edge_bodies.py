"""Bodies of every kind of wrongness get the status and the field that they deserve, on every route that takes one."""

import asyncio
from typing import Any

import msgspec
import pytest

from headrace.server.api_table import OPERATIONS
from headrace.server.settings import ServerSettings
from headrace.testing.fake_engine import FakeEngine

pytestmark = pytest.mark.integration

JSON = {"content-type": "application/json"}
ADMIN = {"authorization": "Bearer admin"}
CHAT = {"messages": [{"role": "user", "content": "hi"}]}
MESSAGES = {**CHAT, "max_tokens": 5}
PATHS = [operation.path for operation in OPERATIONS if operation.request is not None]

WRONG_TYPES = [
    ("/v1/completions", {"prompt": 5}, "prompt"),
    ("/v1/completions", {"prompt": None}, "prompt"),
    ("/v1/completions", {"prompt": {"a": "b"}}, "prompt"),
    ("/v1/completions", {"prompt": ["a", 1.5]}, "prompt[1]"),
    ("/v1/completions", {}, "prompt"),
    ("/v1/completions", {"prompt": "a", "max_tokens": "5"}, "max_tokens"),
    ("/v1/completions", {"prompt": "a", "max_tokens": 2.5}, "max_tokens"),
    ("/v1/completions", {"prompt": "a", "max_tokens": 10**30}, "max_tokens"),
    ("/v1/completions", {"prompt": "a", "stream": "yes"}, "stream"),
    ("/v1/completions", {"prompt": "a", "stream_options": 1}, "stream_options"),
    ("/v1/completions", {"prompt": "a", "stop": [1]}, "stop[0]"),
    ("/v1/completions", {"prompt": "a", "logit_bias": {"x": 1}}, "logit_bias"),
    ("/v1/completions", {"prompt": [[-1]]}, "prompt[0][0]"),
    ("/v1/chat/completions", {"messages": "hi"}, "messages"),
    ("/v1/chat/completions", {"messages": []}, "messages"),
    ("/v1/chat/completions", {"messages": [5]}, "messages[0]"),
    ("/v1/chat/completions", {"messages": [{"content": "hi"}]}, "messages[0].role"),
    ("/v1/chat/completions", {**CHAT, "temperature": "hot"}, "temperature"),
    ("/v1/chat/completions", {**CHAT, "tools": {}}, "tools"),
    ("/v1/chat/completions", {**CHAT, "response_format": {"type": "xml"}}, "response_format.type"),
    ("/v1/embeddings", {"input": {}}, "input"),
    ("/v1/embeddings", {"input": "a", "encoding_format": "hex"}, "encoding_format"),
    ("/v1/responses", {"input": 5}, "input"),
    ("/v1/responses", {"input": "a", "max_output_tokens": 0}, "max_output_tokens"),
    ("/tokenize", {"prompt": ["a"]}, "prompt"),
    ("/detokenize", {"tokens": "a"}, "tokens"),
    ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
    ("/inference/v1/generate", {"token_ids": ["a"], "sampling_params": {}}, "token_ids[0]"),
    ("/inference/v1/generate", {"token_ids": [1]}, "sampling_params"),
    ("/inference/v1/generate", {"token_ids": [1], "sampling_params": {"n": "x"}}, "sampling_params.n"),
    ("/abort", {"request_ids": "all"}, "request_ids"),
    ("/v1/load_lora_adapter", {"lora_name": "a"}, "lora_path"),
]


@pytest.mark.parametrize(("path", "body", "param"), WRONG_TYPES)
async def test_a_wrong_field_is_400_and_named(engine: FakeEngine, serve: Any, path: str, body: Any, param: str) -> None:
    async with serve(engine, ServerSettings(admin_api_key=("admin",))) as server:
        response = await server.http.post(path, json=body, headers=ADMIN)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert param in error["message"]


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ({**MESSAGES, "max_tokens": "many"}, "max_tokens"),
        (CHAT, "max_tokens"),
        ({**MESSAGES, "stop_sequences": ["end", ""]}, "stop_sequences[1]"),
        ({"messages": [{"role": "robot", "content": "hi"}], "max_tokens": 5}, "messages[0].role"),
        (
            {**MESSAGES, "messages": [{"role": "user", "content": [{"type": "hologram"}]}]},
            "messages[0].content[0].type",
        ),
    ],
)
async def test_on_anthropics_routes_the_message_names_it(server: Any, body: Any, name: str) -> None:
    response = await server.http.post("/v1/messages", json=body)
    assert response.status_code == 400
    answer = response.json()
    assert (answer["type"], answer["error"]["type"]) == ("error", "invalid_request_error")
    assert name in answer["error"]["message"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\xff\xfe\x00", "UTF-8"),
        (b'{"a":"\xff"}', "UTF-8"),
        (b'{"a":"\\ud800"}', "JSON"),
        (b'{"a":' + b"[" * 50_000 + b"]" * 50_000 + b"}", "deeply"),
        (b'{"a":1', "JSON"),
        (b"[]", "object"),
        (b"null", "object"),
        (b'"text"', "object"),
    ],
    ids=["binary", "not utf-8", "lone surrogate", "deep", "cut off", "list", "null", "string"],
)
async def test_a_body_that_is_no_json_object_is_400_everywhere(
    engine: FakeEngine, serve: Any, content: bytes, words: str
) -> None:
    async with serve(engine, ServerSettings(admin_api_key=("admin",))) as server:
        for path in PATHS:
            response = await server.http.post(path, content=content, headers={**JSON, **ADMIN})
            assert response.status_code == 400, path
            assert words in response.json()["error"]["message"], path
    assert engine.statistics().num_started == 0


@pytest.mark.parametrize("depth", [400, 700, 950])
async def test_what_is_nested_deeply_is_no_defect_of_the_server(server: Any, depth: int) -> None:
    """Less deeply than the decoder refuses, and more deeply than Python's functions may call each other."""
    deep = b'{"a":' * depth + b"1" + b"}" * depth
    message = b'{"role":"user","content":"hi"}'
    bodies = [
        ("/v1/chat/completions", b'{"messages":[{"role":"user","content":"hi","x":%s}]}'),
        ("/v1/chat/completions", b'{"messages":[{"role":"user","content":[%s]}]}'),
        ("/v1/chat/completions", b'{"messages":[%s],"chat_template_kwargs":%%s}' % message),
        ("/v1/responses", b'{"input":[{"role":"user","content":"hi","x":%s}]}'),
        ("/v1/messages/count_tokens", b'{"messages":[%s],"tools":[{"name":"f","input_schema":%%s}]}' % message),
        ("/tokenize", b'{"messages":[%s],"tools":[%%s]}' % message),
    ]
    for path, body in bodies:
        response = await server.http.post(path, content=body % deep, headers=JSON)
        assert response.status_code in (200, 400), (path, body)


async def test_a_prompt_of_two_megabytes_is_answered(serve: Any) -> None:
    prompt = "lorem ipsum " * (2_000_000 // 12)
    async with FakeEngine(max_model_len=3_000_000) as engine, serve(engine) as server:
        response = await server.http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 5})
        assert response.status_code == 200
        assert response.json()["choices"][0]["text"] == "lorem"
        assert response.json()["usage"]["prompt_tokens"] == len(prompt)


async def test_a_prompt_of_two_megabytes_that_does_not_fit_is_told_how_long_it_is(server: Any) -> None:
    response = await server.http.post("/v1/completions", json={"prompt": "x" * 2_000_000})
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
    assert "2000000" in error["message"]


async def test_a_long_answer_that_leaves_in_pieces_is_whole(server: Any) -> None:
    text = "héllo wörld " * 5000
    tokens = (await server.http.post("/tokenize", json={"prompt": text})).json()
    assert tokens["count"] == len(tokens["tokens"]) == len(text.encode())
    assert tokens["token_strs"] is None
    back = await server.http.post("/detokenize", json={"tokens": tokens["tokens"]})
    assert back.json() == {"prompt": text}


async def test_bodies_together_are_bounded_and_their_room_comes_back(engine: FakeEngine, serve: Any) -> None:
    body = msgspec.json.encode({"prompt": "x" * 500, "max_tokens": 1})
    async with serve(engine, ServerSettings(max_total_body_bytes=len(body) + 100)) as server:
        engine.hold()
        async with asyncio.TaskGroup() as group:
            first = group.create_task(server.http.post("/v1/completions", content=body))
            await engine.until(lambda: engine.num_live == 1)
            refused = await server.http.post("/v1/completions", content=body)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
            assert refused.headers["retry-after"] == "1"
            engine.release()
        assert first.result().status_code == 200
        assert (await server.http.post("/v1/completions", content=body)).status_code == 200
