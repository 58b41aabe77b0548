"""/v1/messages and /v1/messages/count_tokens over a real socket, with Anthropic's own client."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anthropic
import httpx
import httpx2
import pytest

from headrace.server.serving import LiveRequests
from headrace.server.settings import ServerSettings
from headrace.testing.fake_engine import FakeEngine, saying
from headrace.tokenization import ByteTokenizer

pytestmark = pytest.mark.integration

ASKED: Any = [{"role": "user", "content": "hi"}]
WEATHER: Any = {
    "name": "weather",
    "description": "Of a city, now.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
OSLO = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
TEMPLATE = (
    '{%- if tools %}{{- \'<tool_call>{"name": ..., "arguments": ...}</tool_call>\' }}{%- endif %}'
    "{%- for message in messages %}{{- message.role + ':' + (message.content or '') }}"
    "{%- if message.reasoning_content %}({{- message.reasoning_content }}){%- endif %}"
    "{%- for call in message.tool_calls or [] %}[{{- call.function.name }} {{ call.function.arguments.city }}]"
    "{%- endfor %}{%- if message.tool_call_id %}#{{- message.tool_call_id }}{%- endif %};{%- endfor %}"
    "{%- if add_generation_prompt %}assistant:{%- endif %}"
)


@dataclass
class Started:
    anthropic: anthropic.AsyncAnthropic
    http: httpx.AsyncClient
    engine: FakeEngine
    live: LiveRequests

    async def create(self, **fields: Any) -> Any:
        given = {"model": "fake-model", "max_tokens": 200, "messages": ASKED, **fields}
        return await self.anthropic.messages.create(**given)

    async def refusal(self, **fields: Any) -> str:
        """What the error of a bad request says."""
        with pytest.raises(anthropic.BadRequestError) as refused:
            await self.create(**fields)
        assert refused.value.type == "invalid_request_error"
        return refused.value.api_message or ""


@asynccontextmanager
async def started(serve: Any, engine: FakeEngine, **settings: Any) -> AsyncIterator[Started]:
    async with (
        serve(engine, ServerSettings(port=0, **settings)) as server,
        httpx2.AsyncClient(timeout=20, verify=False) as connections,
        anthropic.AsyncAnthropic(
            base_url=server.url, api_key="none", max_retries=0, http_client=connections
        ) as official,
    ):
        yield Started(official, server.http, engine, server.live)


@pytest.fixture
async def server(engine: FakeEngine, serve: Any) -> AsyncIterator[Started]:
    """Its answer is the prompt."""
    async with started(serve, engine) as server:
        yield server


@pytest.fixture
def saying_server(serve: Any) -> Any:
    """`async with saying_server(text) as server`: every answer is that text."""

    @asynccontextmanager
    async def start(text: str, **settings: Any) -> AsyncIterator[Started]:
        tokenizer = ByteTokenizer(chat_template=TEMPLATE)
        async with (
            FakeEngine(answer=saying(text), tokenizer=tokenizer, keeps_to_structures=True) as engine,
            started(serve, engine, **settings) as server,
        ):
            yield server

    return start


@pytest.fixture
async def templated(serve: Any) -> AsyncIterator[Started]:
    """Its answer is the prompt, as `TEMPLATE` renders it."""
    async with FakeEngine(tokenizer=ByteTokenizer(chat_template=TEMPLATE)) as engine, started(serve, engine) as server:
        yield server


# -- whole and streamed


async def test_a_message_is_answered_with_usage(server: Started) -> None:
    answer = await server.create()
    (block,) = answer.content
    assert (block.type, block.text) == ("text", "user\nhi\nassistant\n")
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", "fake-model")
    assert (answer.stop_reason, answer.stop_sequence) == ("end_turn", None)
    assert answer.id.startswith("msg-")
    assert (
        answer.usage.input_tokens + answer.usage.cache_read_input_tokens == len("<user\nhi><") + len("assistant\n") + 1
    )
    assert answer.usage.output_tokens == 21


async def test_a_stream_has_anthropics_events_in_order(server: Started) -> None:
    names, datas = [], []
    body = {"model": "fake-model", "max_tokens": 3, "messages": ASKED, "stream": True}
    async with server.http.stream("POST", "/v1/messages", json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line async for line in response.aiter_lines() if line]
    for name, data in zip(lines[::2], lines[1::2], strict=True):
        names.append(name.removeprefix("event: "))
        datas.append(json.loads(data.removeprefix("data: ")))
    assert [data["type"] for data in datas] == names
    assert [names[0], names[1], *names[-3:]] == [
        "message_start",
        "content_block_start",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert set(names[2:-3]) == {"content_block_delta"}
    assert datas[0]["message"]["content"] == []
    assert datas[0]["message"]["stop_reason"] is None
    assert datas[1] == {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    assert datas[-2]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert datas[-2]["usage"]["output_tokens"] == 3


async def test_the_clients_helper_joins_a_stream_to_what_a_whole_answer_is(server: Started) -> None:
    whole = await server.create()
    async with server.anthropic.messages.stream(model="fake-model", max_tokens=200, messages=ASKED) as stream:
        texts = [text async for text in stream.text_stream]
        final = await stream.get_final_message()
    assert "".join(texts) == whole.content[0].text
    assert final.content[0].text == whole.content[0].text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert final.usage.input_tokens == whole.usage.input_tokens


async def test_an_answer_without_text_has_no_block(saying_server: Any) -> None:
    async with saying_server(
        "END",
    ) as server:
        answer = await server.create(stop_sequences=["END"])
        assert (answer.content, answer.stop_reason, answer.stop_sequence) == ([], "stop_sequence", "END")


async def test_a_stop_sequence_ends_the_text_and_is_told(server: Started) -> None:
    answer = await server.create(stop_sequences=["assist"])
    assert answer.content[0].text == "user\nhi\n"
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "assist")


async def test_max_tokens_ends_the_text(server: Started) -> None:
    answer = await server.create(max_tokens=2)
    assert (answer.stop_reason, answer.usage.output_tokens) == ("max_tokens", 2)


async def test_sampling_fields_reach_the_engine(server: Started) -> None:
    fields = {"temperature": 0.25, "top_k": 7, "top_p": 0.5}
    await server.create(extra_body=fields, metadata={"user_id": "somebody"})
    params = server.engine.latest_sampling_params
    assert params is not None
    assert (params.temperature, params.top_k, params.top_p, params.max_tokens) == (0.25, 7, 0.5, 200)


# -- what a prompt is made of


async def prompt_of(server: Started, **fields: Any) -> str:
    return "".join(block.text for block in (await server.create(**fields)).content)


async def test_the_system_text_stands_first(templated: Started) -> None:
    assert await prompt_of(templated, system="be brief") == "system:be brief;user:hi;assistant:"
    blocks = [{"type": "text", "text": "be", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "brief"}]
    assert await prompt_of(templated, system=blocks) == "system:be\nbrief;user:hi;assistant:"


async def test_a_last_message_of_the_assistants_is_continued(templated: Started) -> None:
    messages = [*ASKED, {"role": "assistant", "content": "The answer is ("}]
    assert await prompt_of(templated, messages=messages) == "user:hi;assistant:The answer is ("


async def test_calls_and_their_results_are_told_to_the_template(templated: Started) -> None:
    messages = [
        *ASKED,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "a city", "signature": ""},
                {"type": "text", "text": "Let me look."},
                {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Oslo"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "call_1", "content": [{"type": "text", "text": "rain"}]},
                {"type": "text", "text": "and?"},
            ],
        },
    ]
    expected = "user:hi;assistant:Let me look.(a city)[weather Oslo];tool:rain#call_1;user:and?;assistant:"
    assert await prompt_of(templated, messages=messages) == expected


async def test_tokens_are_counted_as_the_answer_counts_them(server: Started) -> None:
    counted = await server.anthropic.messages.count_tokens(model="fake-model", messages=ASKED, system="Grüße 🌊")
    answer = await server.create(system="Grüße 🌊", max_tokens=1)
    assert counted.input_tokens == answer.usage.input_tokens
    assert server.engine.statistics().num_started == 1


# -- tools


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_calls_are_answered_as_tool_use(saying_server: Any, is_streamed: bool) -> None:
    async with saying_server(f"Let me look.\n{OSLO}\n{OSLO}") as server:
        if is_streamed:
            fields: Any = {"model": "fake-model", "max_tokens": 300, "messages": ASKED, "tools": [WEATHER]}
            async with server.anthropic.messages.stream(**fields) as stream:
                answer = await stream.get_final_message()
        else:
            answer = await server.create(tools=[WEATHER], max_tokens=300)
    text, *calls = answer.content
    assert text.text == "Let me look."
    assert [(call.type, call.name, call.input) for call in calls] == [("tool_use", "weather", {"city": "Oslo"})] * 2
    assert len({call.id for call in calls}) == 2
    assert answer.stop_reason == "tool_use"


async def test_a_call_that_is_cut_off_is_no_block(saying_server: Any) -> None:
    async with saying_server(f"Well.\n{OSLO}") as server:
        answer = await server.create(tools=[WEATHER], max_tokens=60)
    assert [block.type for block in answer.content] == ["text"]
    assert answer.stop_reason == "max_tokens"


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}])
async def test_a_forced_choice_is_tool_use(saying_server: Any, choice: Any) -> None:
    async with saying_server(OSLO) as server:
        answer = await server.create(tools=[WEATHER], tool_choice=choice)
        params = server.engine.latest_sampling_params
    assert (answer.stop_reason, answer.content[0].name) == ("tool_use", "weather")
    assert params is not None
    assert params.structured_outputs is not None


async def test_without_a_choice_no_call_is_looked_for(saying_server: Any) -> None:
    async with saying_server(OSLO) as server:
        answer = await server.create(tools=[WEATHER], tool_choice={"type": "none"})
    assert answer.content[0].text == OSLO


async def test_an_output_format_is_a_json_schema_for_the_engine(saying_server: Any) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    async with saying_server('{"city": "Oslo"}') as server:
        await server.create(output_config={"format": {"type": "json_schema", "schema": schema}})
        params = server.engine.latest_sampling_params
    assert params is not None
    assert params.structured_outputs is not None
    assert json.loads(str(params.structured_outputs.json)) == schema


# -- refusals and failures


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_result", "tool_use_id": "x"}]}, *ASKED]},
         "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": "x"}]}]},
         "messages[0].content[0].type"),
        ({"messages": [*ASKED, {"role": "assistant", "content": [
            {"type": "tool_use", "id": "x", "name": "y", "input": {}}]}]}, "messages"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"extra_body": {"temperature": 3}}, "temperature"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"name": "weather"}]}, "tools[0].input_schema"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking"),
        ({"service_tier": "priority"}, "service_tier"),
        ({"output_config": {"effort": "high"}}, "output_config.effort"),
        ({"extra_body": {"mcp_servers": [{"url": "x"}]}}, "mcp_servers"),
        ({"extra_body": {"container": "x"}}, "container"),
        ({"max_tokens": 5000}, "maximum context length"),
    ],
)  # fmt: skip
async def test_a_bad_request_is_refused_by_name(server: Started, fields: dict[str, Any], field: str) -> None:
    assert field in await server.refusal(**fields)


async def test_max_tokens_must_be_given(server: Started) -> None:
    response = await server.http.post("/v1/messages", json={"messages": ASKED})
    assert response.status_code == 400
    assert response.json() == {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "max_tokens: the field is required"},
    }


async def test_other_errors_have_anthropics_types(server: Started) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        await server.create(model="other")
    assert missing.value.type == "not_found_error"
    assert (await server.http.get("/v1/messages")).json()["error"]["type"] == "invalid_request_error"
    assert (await server.http.get("/v1/messages/other")).json()["error"]["type"] == "not_found_error"
    server.engine.die("out of memory")
    with pytest.raises(anthropic.InternalServerError, match="out of memory") as dead:
        await server.create()
    assert dead.value.type == "overloaded_error"


async def test_an_engine_that_dies_within_a_stream_is_an_error_event(server: Started) -> None:
    server.engine.hold(after_tokens=3)
    stream = await server.create(stream=True)
    await anext(stream)
    server.engine.die("the core was killed")
    with pytest.raises(anthropic.APIStatusError, match="the core was killed"):
        _ = [event async for event in stream]


async def test_a_client_that_times_out_aborts(server: Started) -> None:
    engine = server.engine
    engine.hold()
    for timeout_s in (0.2, 1, 5):  # on a busy machine the first may be over before the server has seen anything
        with pytest.raises(anthropic.APITimeoutError):
            await server.anthropic.with_options(timeout=timeout_s).messages.create(
                model="fake-model", max_tokens=20, messages=ASKED
            )
        if engine.statistics().num_started:
            break
    await engine.until(lambda: engine.num_live == 0)
    assert engine.statistics().num_aborted == engine.statistics().num_started > 0


async def test_closing_a_stream_aborts(server: Started) -> None:
    server.engine.hold(after_tokens=2)
    async with server.anthropic.messages.stream(model="fake-model", max_tokens=20, messages=ASKED) as stream:
        await anext(stream)
    await server.engine.until(lambda: server.engine.num_live == 0)
    assert server.engine.statistics().num_aborted == 1


async def test_keys_are_taken_as_x_api_key_and_as_bearer(engine: FakeEngine, serve: Any) -> None:
    async with started(serve, engine, api_key=("secret",)) as server:
        with pytest.raises(anthropic.AuthenticationError) as refused:
            await server.create()
        assert refused.value.type == "authentication_error"
        assert await server.anthropic.with_options(api_key="secret").messages.count_tokens(
            model="fake-model", messages=ASKED
        )
        for headers in ({"x-api-key": "secret"}, {"authorization": "Bearer secret"}):
            response = await server.http.post("/tokenize", json={"prompt": "x"}, headers=headers)
            assert response.status_code == 200


async def test_its_synchronous_form_streams(server: Started) -> None:
    url = str(server.anthropic.base_url)

    def use() -> str:
        with (
            httpx2.Client(verify=False) as connections,
            anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, http_client=connections) as client,
            client.messages.stream(model="fake-model", max_tokens=200, messages=ASKED) as stream,
        ):
            return "".join(stream.text_stream)

    assert await asyncio.to_thread(use) == "user\nhi\nassistant\n"
