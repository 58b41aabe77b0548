"""Tool calls over a real socket with the official client: an engine that says what a test wants."""

import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import httpx
import pydantic
import pytest

import openai
from headrace.server.settings import ServerSettings
from headrace.testing.fake_engine import FakeEngine, saying
from headrace.tokenization import ByteTokenizer

pytestmark = pytest.mark.integration

ASKED: Any = [{"role": "user", "content": "weather?"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Of a city, now.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
NOW: Any = {"type": "function", "function": {"name": "now"}}

OSLO = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo \\u2600"}}\n</tool_call>'
OSLO_ARGUMENTS = '{"city": "Oslo \\u2600"}'

TEMPLATE = (
    '{%- if tools %}{{- \'<tool_call>{"name": ..., "arguments": ...}</tool_call>\' }}'
    "{%- for tool in tools %}{{- tool | tojson }}{%- endfor %}{%- endif %}"
    "{%- for message in messages %}"
    "{{- message.role + ':' + (message.content or '') }}"
    "{%- for call in message.tool_calls or [] %}{{- call.function.name }}({{- call.function.arguments.city }})"
    "{%- endfor %}{%- if message.tool_call_id %}{{- '#' + message.tool_call_id }}{%- endif %};"
    "{%- endfor %}{%- if add_generation_prompt %}assistant:{%- endif %}"
)
"""Teaches Hermes' form."""


@pytest.fixture
def saying_server(serve: Any) -> Any:
    """`async with saying_server(text) as server`: every answer is that text. The engine is `server.engine`."""

    @asynccontextmanager
    async def start(text: str, **settings: Any) -> AsyncIterator[Any]:
        tokenizer = ByteTokenizer(chat_template=TEMPLATE)
        async with (
            FakeEngine(answer=saying(text), tokenizer=tokenizer, keeps_to_structures=True) as engine,
            serve(engine, ServerSettings(port=0, **settings)) as server,
        ):
            yield Started(server.openai, server.http, engine)
            assert engine.num_live == 0

    return start


class Started:
    def __init__(self, client: openai.AsyncOpenAI, http: httpx.AsyncClient, engine: FakeEngine) -> None:
        self.client = client
        self.http = http
        self.engine = engine

    async def ask(self, **fields: Any) -> Any:
        return await self.client.chat.completions.create(
            model="fake-model", messages=ASKED, **{"tools": [WEATHER, NOW], **fields}
        )

    async def ask_in_stream(self, **fields: Any) -> Any:
        """The completion that the client's own helper joins the stream to."""
        manager: AbstractAsyncContextManager[Any] = self.client.chat.completions.stream(
            model="fake-model", messages=ASKED, **{"tools": [WEATHER, NOW], **fields}
        )
        async with manager as stream:
            return await stream.get_final_completion()

    async def refusal(self, **fields: Any) -> tuple[str | None, str]:
        with pytest.raises(openai.BadRequestError) as refused:
            await self.ask(**fields)
        return refused.value.param, refused.value.message


def calls_of(completion: Any) -> list[tuple[str, str]]:
    return [(call.function.name, call.function.arguments) for call in completion.choices[0].message.tool_calls or []]


@pytest.mark.parametrize("way", ["ask", "ask_in_stream"])
async def test_calls_are_answered_as_calls(saying_server: Any, way: str) -> None:
    async with saying_server("Let me look.\n" + OSLO + "\n" + OSLO) as server:
        answer = await getattr(server, way)()
    (choice,) = answer.choices
    assert calls_of(answer) == [("weather", OSLO_ARGUMENTS)] * 2
    assert len({call.id for call in choice.message.tool_calls}) == 2
    assert all(call.type == "function" and call.id.startswith("call_") for call in choice.message.tool_calls)
    assert choice.message.content == "Let me look."
    assert choice.finish_reason == "tool_calls"


@pytest.mark.parametrize("way", ["ask", "ask_in_stream"])
async def test_an_answer_of_calls_alone_has_no_content(saying_server: Any, way: str) -> None:
    async with saying_server(OSLO) as server:
        answer = await getattr(server, way)()
    assert calls_of(answer) == [("weather", OSLO_ARGUMENTS)]
    assert answer.choices[0].message.content is None


@pytest.mark.parametrize("way", ["ask", "ask_in_stream"])
async def test_an_answer_without_calls_is_text(saying_server: Any, way: str) -> None:
    text = "It is < 5 <tool_call> {or so}. \n"
    async with saying_server(text) as server:
        answer = await getattr(server, way)()
    (choice,) = answer.choices
    assert (choice.message.content, choice.finish_reason) == (text, "stop")
    assert not choice.message.tool_calls


async def test_a_stream_names_the_call_before_its_arguments_and_counts_every_token(saying_server: Any) -> None:
    async with saying_server("So:\n" + OSLO) as server:
        stream = await server.ask(stream=True, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in stream]
    *chunks, last, usage = chunks
    assert usage.usage.completion_tokens == len("So:\n" + OSLO)
    assert (last.choices[0].finish_reason, last.choices[0].delta.tool_calls) == ("tool_calls", None)
    deltas = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    first, *others = deltas
    assert first.id
    assert (first.index, first.type, first.function.name) == (0, "function", "weather")
    assert all(delta.id is None and delta.function.name is None for delta in others)
    assert len(others) > 10, "arguments come while they are written"
    assert "".join(delta.function.arguments for delta in deltas) == OSLO_ARGUMENTS
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "So:"


@pytest.mark.parametrize("way", ["ask", "ask_in_stream"])
async def test_one_call_at_most_without_parallel_calls(saying_server: Any, way: str) -> None:
    async with saying_server(OSLO + OSLO) as server:
        answer = await getattr(server, way)(parallel_tool_calls=False)
    assert calls_of(answer) == [("weather", OSLO_ARGUMENTS)]


async def test_an_answer_cut_short_keeps_its_reason_and_what_there_is_of_the_call(saying_server: Any) -> None:
    async with saying_server(OSLO) as server:
        answer = await server.ask(max_tokens=60)
    assert answer.choices[0].finish_reason == "length"
    assert calls_of(answer) == [("weather", '{"city": "Oslo ')]


async def test_tools_with_the_choice_none_are_shown_to_the_model_and_not_looked_for(saying_server: Any) -> None:
    async with saying_server(OSLO) as server:
        answer = await server.ask(tool_choice="none")
        assert answer.choices[0].message.content == OSLO
        assert answer.choices[0].finish_reason == "stop"
        without = await server.ask(tools=[])
        assert answer.usage.prompt_tokens > without.usage.prompt_tokens


async def test_calls_and_their_results_go_through_the_template(saying_server: Any) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    messages = [
        *ASKED,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sun"},
    ]
    async with saying_server("Sun.") as server:
        response = await server.http.post("/tokenize", json={"messages": messages})
        text = (await server.http.post("/detokenize", json={"tokens": response.json()["tokens"]})).json()["prompt"]
        assert text == "user:weather?;assistant:weather(Oslo);tool:sun#call_1;assistant:"
        answer = await server.client.chat.completions.create(model="fake-model", messages=messages)
        assert answer.usage.prompt_tokens == response.json()["count"]


@pytest.mark.parametrize(
    ("calls", "param"),
    [
        ("weather", "messages[0].tool_calls"),
        ([5], "messages[0].tool_calls[0]"),
        ([{"type": "function"}], "messages[0].tool_calls[0].function"),
        ([{"function": {}}], "messages[0].tool_calls[0].function.name"),
        ([{"function": {"name": "now", "arguments": "{"}}], "messages[0].tool_calls[0].function.arguments"),
    ],
)
async def test_a_call_in_an_earlier_message_must_be_one(saying_server: Any, calls: Any, param: str) -> None:
    async with saying_server("") as server:
        body = {"messages": [{"role": "assistant", "tool_calls": calls}]}
        response = await server.http.post("/v1/chat/completions", json=body)
        assert (response.status_code, response.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    ("choice", "finish_reason"),
    [("required", "tool_calls"), ({"type": "function", "function": {"name": "weather"}}, "stop")],
)
async def test_a_forced_call_is_guided(saying_server: Any, choice: Any, finish_reason: str) -> None:
    async with saying_server(OSLO) as server:
        answer = await server.ask(tool_choice=choice)
        wanted = server.engine.latest_sampling_params.structured_outputs
    assert calls_of(answer) == [("weather", OSLO_ARGUMENTS)]
    assert answer.choices[0].finish_reason == finish_reason
    assert "<tool_call>" in wanted.grammar
    assert ("now" in wanted.grammar) == (choice == "required")


async def test_a_choice_of_its_own_is_guided_only_by_strict_functions(saying_server: Any) -> None:
    strict = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
    async with saying_server(OSLO) as server:
        await server.ask()
        assert server.engine.latest_sampling_params.structured_outputs is None
        await server.ask(tools=[strict])
        assert "city" in server.engine.latest_sampling_params.structured_outputs.grammar


class City(pydantic.BaseModel):
    city: str


async def test_the_clients_parse_helper_gets_parsed_arguments(saying_server: Any) -> None:
    async with saying_server(OSLO) as server:
        answer = await server.client.chat.completions.parse(
            model="fake-model", messages=ASKED, tools=[openai.pydantic_function_tool(City, name="weather")]
        )
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.parsed_arguments == City(city="Oslo ☀")


@pytest.mark.parametrize(("text", "has_called"), [(OSLO, True), ('{"city": "Oslo"}', False)])
async def test_a_response_format_is_for_answers_that_call_nothing(
    saying_server: Any, text: str, has_called: bool
) -> None:
    async with saying_server(text) as server:
        answer = await server.client.chat.completions.parse(
            model="fake-model", messages=ASKED, tools=[openai.pydantic_function_tool(City, name="weather")],
            response_format=City,
        )  # fmt: skip
        grammar = server.engine.latest_sampling_params.structured_outputs.grammar
    message = answer.choices[0].message
    assert "answer: %json" in grammar
    assert bool(message.tool_calls) == has_called
    assert message.parsed == (None if has_called else City(city="Oslo"))


async def test_the_form_can_be_set(saying_server: Any) -> None:
    async with saying_server('{"name": "now", "parameters": {}}', tool_call_parser="llama3_json") as server:
        assert calls_of(await server.ask()) == [("now", "{}")]


async def test_without_a_known_form_only_forced_calls_are_taken(serve: Any) -> None:
    text = json.dumps({"name": "now", "arguments": {}})
    async with FakeEngine(answer=saying(text), keeps_to_structures=True) as engine, serve(engine) as running:
        server = Started(running.openai, running.http, engine)
        param, message = await server.refusal()
        assert param == "tool_choice"
        assert "tool_call_parser" in message
        assert calls_of(await server.ask(tool_choice="required")) == [("now", "{}")]
        assert (await server.ask(tool_choice="none")).choices[0].message.content == text


async def test_choices_of_its_own_can_be_switched_off(saying_server: Any) -> None:
    async with saying_server(OSLO, enable_auto_tool_choice=False) as server:
        param, message = await server.refusal()
        assert (param, "enable_auto_tool_choice" in message) == ("tool_choice", True)
        assert calls_of(await server.ask(tool_choice="required")) == [("weather", OSLO_ARGUMENTS)]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [NOW, NOW]}, "tools[1].function.name"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"extra_body": {"guided_regex": "a+"}}, "structured_outputs"),
        ({"extra_body": {"functions": [{"name": "now"}]}}, "functions"),
        ({"parallel_tool_calls": "yes"}, "parallel_tool_calls"),
    ],
)
async def test_what_cannot_be_is_refused_by_its_name(saying_server: Any, fields: Any, param: str) -> None:
    async with saying_server(OSLO) as server:
        assert (await server.refusal(**fields))[0] == param
