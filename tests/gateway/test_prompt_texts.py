"""What is encoded for a request is what the engine's server encodes for it."""

import json
from typing import Any

import msgspec
import pytest

from headrace.errors import RequestError
from headrace.gateway.endpoints.endpoint import ModelCard
from headrace.gateway.http.message import Request
from headrace.gateway.identify import Call, CallFields
from headrace.gateway.prompt.texts import given_token_ids, prompts_of
from headrace.gateway.routes import Route
from headrace.server.chat import chat_prompt
from headrace.server.messages import MessagesDialect
from headrace.server.responses import ResponsesDialect
from headrace.tokenization import ChatPrompt

WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}}


def call_of(route: Route, **fields: Any) -> Call:
    body = json.dumps(fields).encode()
    request = Request(
        method="POST", target=route.value.encode(), headers=[], is_http10=False, keep_alive=True, body=body
    )
    return Call(
        request=request,
        request_id=b"1",
        route=route,
        card=ModelCard(id="demo"),
        fields=msgspec.json.decode(body, type=CallFields),
        body=(body,),
    )


RESPONSES: list[dict[str, Any]] = [
    {"input": "hi"},
    {"input": "hi", "instructions": "Be brief."},
    {"input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}], "tools": []},
    {
        "input": [
            {"role": "user", "content": "Weather?"},
            {"type": "function_call", "call_id": "1", "name": "weather", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": "Sun."},
        ],
        "tools": [{"type": "function", "name": "weather", "parameters": WEATHER}],
    },
]
MESSAGES: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "hi"}]},
    {"system": [{"type": "text", "text": "Be brief."}], "messages": [{"role": "user", "content": "hi"}]},
    {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Well,"}]},
    {
        "messages": [
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "weather", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "Sun."}]},
        ],
        "tools": [{"name": "weather", "input_schema": WEATHER}],
    },
]


@pytest.mark.parametrize("fields", RESPONSES)
def test_a_response_is_the_chat_that_the_server_makes_of_it(fields: dict[str, Any]) -> None:
    call = call_of(Route.RESPONSES, **fields)

    assert prompts_of(call) == [chat_prompt(ResponsesDialect().decode(call.request.body))]


@pytest.mark.parametrize("route", [Route.MESSAGES, Route.COUNT_TOKENS])
@pytest.mark.parametrize("fields", MESSAGES)
def test_a_message_is_the_chat_that_the_server_makes_of_it(route: Route, fields: dict[str, Any]) -> None:
    call = call_of(route, **fields, max_tokens=5)

    assert prompts_of(call) == [chat_prompt(MessagesDialect().decode(call.request.body))]


def test_a_chat_that_is_continued_opens_no_turn() -> None:
    call = call_of(Route.CHAT, messages=[{"role": "assistant", "content": "a"}], continue_final_message=True)

    (prompt,) = prompts_of(call)

    assert isinstance(prompt, ChatPrompt)
    assert (prompt.add_generation_prompt, prompt.continue_final_message) == (False, True)


@pytest.mark.parametrize(
    ("route", "fields"),
    [
        (Route.RESPONSES, {"input": "hi", "previous_response_id": "resp_1"}),
        (Route.RESPONSES, {"input": [{"type": "item_reference", "id": "1"}]}),
        (Route.MESSAGES, {"messages": [{"role": "user", "content": "a"}], "thinking": {"type": "enabled"}}),
        (Route.MESSAGES, {"messages": []}),
        (Route.CHAT, {"messages": [], "chat_template": "{{ 1 }}"}),
        (Route.CHAT, {"messages": [], "input_ids": [1]}),
        (Route.CHAT, {"messages": [], "kv_transfer_params": {"prompt_token_ids": [1]}}),
    ],
)
def test_what_engines_may_read_otherwise_is_not_counted(route: Route, fields: dict[str, Any]) -> None:
    with pytest.raises(RequestError):
        prompts_of(call_of(route, **fields))


@pytest.mark.parametrize(
    ("route", "fields", "expected"),
    [
        (Route.GENERATE, {"token_ids": [1, 2]}, [[1, 2]]),
        (Route.COMPLETIONS, {"prompt": [1, 2]}, [[1, 2]]),
        (Route.COMPLETIONS, {"prompt": [[1], [2, 3]]}, [[1], [2, 3]]),
        (Route.EMBEDDINGS, {"input": [3]}, [[3]]),
        (Route.CHAT, {"messages": [], "prompt_token_ids": [4]}, [[4]]),
    ],
)
def test_prompts_that_come_as_ids_are_taken(route: Route, fields: dict[str, Any], expected: list[list[int]]) -> None:
    given = given_token_ids(call_of(route, **fields))

    assert given is not None
    assert [ids.tolist() for ids in given] == expected


@pytest.mark.parametrize(
    ("route", "fields"),
    [
        (Route.COMPLETIONS, {"prompt": "a"}),
        (Route.COMPLETIONS, {"prompt": ["a", "b"]}),
        (Route.RESPONSES, {"input": "a"}),
        (Route.MESSAGES, {"messages": []}),
        (Route.COMPLETIONS, {"prompt": "a", "prompt_token_ids": [1]}),
        (Route.EMBEDDINGS, {"input": "a", "prompt_token_ids": [1]}),
        (Route.RESPONSES, {"input": "a", "prompt_token_ids": [1]}),
    ],
)
def test_prompts_that_come_as_text_are_not(route: Route, fields: dict[str, Any]) -> None:
    assert given_token_ids(call_of(route, **fields)) is None
