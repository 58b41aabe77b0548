"""/v1/responses over a real socket, with the official client."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pydantic
import pytest

import openai
from headrace.server.settings import ServerSettings
from headrace.testing.fake_engine import FakeEngine, saying
from headrace.tokenization import ByteTokenizer

pytestmark = pytest.mark.integration

WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "Of a city, now.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}
OSLO = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
TEMPLATE = (
    '{%- if tools %}{{- \'<tool_call>{"name": ..., "arguments": ...}</tool_call>\' }}{%- endif %}'
    "{%- for message in messages %}{{- message.role + ':' + (message.content or '') }}"
    "{%- for call in message.tool_calls or [] %}[{{- call.function.name }} {{ call.function.arguments.city }}]"
    "{%- endfor %}{%- if message.tool_call_id %}#{{- message.tool_call_id }}{%- endif %};{%- endfor %}"
    "{%- if add_generation_prompt %}assistant:{%- endif %}"
)


class Started:
    def __init__(self, server: Any, engine: FakeEngine) -> None:
        self.client: openai.AsyncOpenAI = server.openai
        self.http = server.http
        self.engine = engine

    async def create(self, **fields: Any) -> Any:
        given = {"model": "fake-model", "input": "hi", **fields}
        return await self.client.responses.create(**given)

    async def events(self, **fields: Any) -> list[Any]:
        return [event async for event in await self.create(stream=True, **fields)]


@pytest.fixture
async def asked(engine: FakeEngine, server: Any) -> Started:
    """Its answer is the prompt."""
    return Started(server, engine)


@pytest.fixture
def saying_server(serve: Any) -> Any:
    """`async with saying_server(text) as server`: every answer is that text; without one it is the prompt."""

    @asynccontextmanager
    async def start(text: str | None = None) -> AsyncIterator[Started]:
        answer: Any = {} if text is None else {"answer": saying(text)}
        async with (
            FakeEngine(**answer, tokenizer=ByteTokenizer(chat_template=TEMPLATE), keeps_to_structures=True) as engine,
            serve(engine, ServerSettings(port=0)) as server,
        ):
            yield Started(server, engine)

    return start


# -- whole


async def test_a_response_holds_one_message_and_the_usage(asked: Started) -> None:
    response = await asked.create()
    (message,) = response.output
    assert response.output_text == "user\nhi\nassistant\n"
    assert (message.type, message.role, message.status) == ("message", "assistant", "completed")
    assert (response.object, response.status, response.model) == ("response", "completed", "fake-model")
    assert response.error is response.incomplete_details is None
    assert response.usage.output_tokens == 21
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    assert response.usage.input_tokens_details.cached_tokens == 0


async def test_a_response_repeats_what_was_asked_and_says_that_it_is_not_stored(asked: Started) -> None:
    response = await asked.create(
        instructions="be brief", max_output_tokens=5, temperature=0.5, top_p=0.25, metadata={"a": "b"}
    )
    assert (response.instructions, response.max_output_tokens) == ("be brief", 5)
    assert (response.temperature, response.top_p, response.metadata) == (0.5, 0.25, {"a": "b"})
    assert (response.tools, response.tool_choice, response.parallel_tool_calls) == ([], "auto", True)
    assert response.text.format.type == "text"
    assert (response.store, response.background, response.truncation) == (False, False, "disabled")
    params = asked.engine.latest_sampling_params
    assert params is not None
    assert (params.temperature, params.top_p, params.max_tokens) == (0.5, 0.25, 5)


async def test_max_output_tokens_leaves_a_response_incomplete(asked: Started) -> None:
    response = await asked.create(max_output_tokens=2)
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert response.output[0].status == "incomplete"


async def test_instructions_and_items_make_the_prompt(saying_server: Any) -> None:
    items: Any = [
        {"role": "user", "content": "weather?"},
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
         "content": [{"type": "output_text", "text": "Let me look.", "annotations": []}]},
        {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": '{"city": "Oslo"}'},
        {"type": "function_call", "call_id": "call_2", "name": "weather", "arguments": '{"city": "Rome"}'},
        {"type": "function_call_output", "call_id": "call_1", "output": "rain"},
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
    ]  # fmt: skip
    async with saying_server() as server:
        response = await server.create(instructions="be brief", input=items)
    assert response.output_text == (
        "system:be brief;user:weather?;assistant:Let me look.[weather Oslo][weather Rome];"
        "tool:rain#call_1;user:a\nb;assistant:"
    )


async def test_the_output_of_a_response_can_be_input_of_the_next(saying_server: Any) -> None:
    async with saying_server() as server:
        first = await server.create(input="one")
        items = [{"role": "user", "content": "one"}, *[item.model_dump() for item in first.output]]
        second = await server.create(input=[*items, {"role": "user", "content": "two"}])
    assert second.output_text == "user:one;assistant:user:one;assistant:;user:two;assistant:"


# -- streamed


async def test_the_events_of_a_stream_come_in_order_and_numbered(asked: Started) -> None:
    events = await asked.events(max_output_tokens=3)
    types = [event.type for event in events]
    assert [*types[:4], *types[-4:]] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    assert set(types[4:-4]) == {"response.output_text.delta"}
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].response.status == "in_progress"
    assert events[0].response.output == []
    (item,) = {event.item_id for event in events[3:-2]}
    assert item == events[2].item.id == events[-2].item.id
    assert events[-1].response.output == [events[-2].item]
    assert events[-1].response.usage.output_tokens == 3


async def test_a_stream_joins_to_what_a_whole_response_is(asked: Started) -> None:
    whole = await asked.create()
    events = await asked.events()
    final = events[-1].response
    deltas = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert events[-1].type == "response.completed"
    assert deltas == final.output_text == whole.output_text
    assert final.usage == whole.usage
    names = {"id", "created_at", "output"}
    assert final.model_dump(exclude=names) == whole.model_dump(exclude=names)


async def test_the_clients_helper_joins_a_stream(asked: Started) -> None:
    async with asked.client.responses.stream(model="fake-model", input="hi") as stream:
        final = await stream.get_final_response()
    assert final.output_text == "user\nhi\nassistant\n"


async def test_an_answer_without_text_is_a_message_without_text(saying_server: Any) -> None:
    async with saying_server("END") as server:
        whole = await server.create(extra_body={"stop": "END"})
        events = await server.events(extra_body={"stop": "END"})
    assert whole.output_text == events[-1].response.output_text == ""
    assert [item.status for item in events[-1].response.output] == ["completed"]


# -- tools and formats


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_calls_are_items_of_their_own(saying_server: Any, is_streamed: bool) -> None:
    async with saying_server(f"Let me look.\n{OSLO}\n{OSLO}") as server:
        if is_streamed:
            response = (await server.events(tools=[WEATHER]))[-1].response
        else:
            response = await server.create(tools=[WEATHER])
    message, *calls = response.output
    assert message.content[0].text == "Let me look."
    assert [(call.type, call.name, call.arguments) for call in calls] == [
        ("function_call", "weather", '{"city": "Oslo"}')
    ] * 2
    assert len({call.call_id for call in calls}) == len({call.id for call in calls}) == 2
    assert response.tools[0].name == "weather"


async def test_the_arguments_of_a_call_stream(saying_server: Any) -> None:
    async with saying_server(OSLO) as server:
        events = await server.events(tools=[WEATHER], tool_choice={"type": "function", "name": "weather"})
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    (done,) = [event for event in events if event.type == "response.function_call_arguments.done"]
    assert "".join(deltas) == done.arguments == '{"city": "Oslo"}'
    assert [item.type for item in events[-1].response.output] == ["function_call"]
    assert not any(event.type == "response.output_text.delta" for event in events)


async def test_the_clients_parse_helper_reads_a_schema(saying_server: Any) -> None:
    class Place(pydantic.BaseModel):
        city: str

    async with saying_server('{"city": "Oslo"}') as server:
        response = await server.client.responses.parse(model="fake-model", input="where?", text_format=Place)
        params = server.engine.latest_sampling_params
    assert response.output_parsed == Place(city="Oslo")
    assert params is not None
    assert params.structured_outputs is not None
    assert json.loads(str(params.structured_outputs.json))["required"] == ["city"]


# -- refusals and failures


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"type": "function_call", "name": "x"}]}, "input[0].call_id"),
        ({"input": "x" * 5000}, "input"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"store": True}, "store"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"reasoning": {"effort": "low"}}, "reasoning"),
        ({"prompt": {"id": "x"}}, "prompt"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [WEATHER], "tool_choice": {"type": "file_search"}}, "tool_choice.type"),
        ({"include": ["other"]}, "include[0]"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"extra_body": {"cache_salt": ""}}, "cache_salt"),
    ],
)
async def test_a_bad_request_is_refused_by_name(asked: Started, fields: dict[str, Any], param: str) -> None:
    for is_streamed in (False, True):
        with pytest.raises(openai.BadRequestError) as refused:
            await asked.create(stream=is_streamed, **fields)
        assert refused.value.param == param
    assert asked.engine.statistics().num_started == 0


async def test_what_the_template_refuses_is_told_of_the_input(serve: Any) -> None:
    refusing = ByteTokenizer(chat_template="{{ raise_exception('no such role') }}")
    async with FakeEngine(tokenizer=refusing) as engine, serve(engine) as server:
        with pytest.raises(openai.BadRequestError, match="no such role") as refused:
            await Started(server, engine).create()
    assert refused.value.param == "input"


async def test_what_changes_nothing_is_let_through(asked: Started) -> None:
    response = await asked.create(
        store=False,
        include=["reasoning.encrypted_content"],
        truncation="disabled",
        service_tier="auto",
        prompt_cache_key="x",
        text={"format": {"type": "text"}, "verbosity": "medium"},
    )
    assert response.status == "completed"


async def test_other_errors_are_the_clients_own(asked: Started) -> None:
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        await asked.create(model="gpt-6")
    asked.engine.die("out of memory")
    with pytest.raises(openai.InternalServerError, match="out of memory"):
        await asked.create()


async def test_an_engine_that_dies_within_a_stream_fails_the_response(asked: Started) -> None:
    asked.engine.hold(after_tokens=3)
    events = []
    async for event in await asked.create(stream=True):
        if event.type == "response.created":
            asked.engine.die("the core was killed")
        events.append(event)
    assert events[-1].type == "response.failed"
    assert events[-1].response.status == "failed"
    assert "the core was killed" in events[-1].response.error.message


async def test_a_client_that_times_out_aborts(asked: Started) -> None:
    asked.engine.hold()
    with pytest.raises(openai.APITimeoutError):
        await asked.create(timeout=0.2)
    await asked.engine.until(lambda: asked.engine.num_live == 0)
    assert asked.engine.statistics().num_aborted == 1


async def test_closing_a_stream_aborts(asked: Started) -> None:
    asked.engine.hold(after_tokens=2)
    stream = await asked.create(stream=True)
    await anext(stream)
    await stream.close()
    await asked.engine.until(lambda: asked.engine.num_live == 0)
    assert asked.engine.statistics().num_aborted == 1
