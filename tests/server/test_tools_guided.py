"""Forced tool calls and response formats with real engines, which know no tools and are guided into calling them."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pydantic
import pytest

import openai
from headrace.engine.async_engine import AsyncLLMEngine
from headrace.engine.config import AsyncEngineArgs
from headrace.server.settings import ServerSettings
from headrace.testing.tiny_model import write_tiny_model

pytestmark = pytest.mark.integration

DEMO = Path(__file__).parents[2] / "models" / "demo"
ASKED: Any = [{"role": "user", "content": "What is 2 plus 3?"}]
ADD: Any = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"$ref": "#/$defs/digit"}, "b": {"$ref": "#/$defs/digit"}},
            "required": ["a", "b"],
            "additionalProperties": False,
            "$defs": {"digit": {"type": "integer", "minimum": 0, "maximum": 9}},
        },
    },
}
STOP: Any = {"type": "function", "function": {"name": "stop"}}
UNKNOWN_KEYWORD: Any = {"type": "object", "unevaluatedProperties": False}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(params=[None, "hermes", "llama3_json"])
async def client(model_dir: Path, serve: Any, request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    """Of a server whose model is said to write calls in each of the forms, and in none."""
    args = AsyncEngineArgs(
        model=str(model_dir), served_model_name="tiny", cpu_threads=1, device="cpu", disable_log_requests=True
    )
    settings = ServerSettings(port=0, tool_call_parser=request.param)
    async with AsyncLLMEngine.from_engine_args(args, in_process=True) as engine, serve(engine, settings) as server:
        yield server.openai


async def ask(client: Any, **fields: Any) -> Any:
    fields = {"tools": [ADD], "seed": 3, "max_tokens": 150, "parallel_tool_calls": False, **fields}
    return await client.chat.completions.create(model="tiny", messages=ASKED, **fields)


def checked_calls(choice: Any) -> list[Any]:
    """The calls of an answer, whose arguments follow the schema."""
    for call in choice.message.tool_calls:
        arguments = json.loads(call.function.arguments)
        assert set(arguments) == {"a", "b"}
        assert all(0 <= value <= 9 for value in arguments.values())
    return [(call.function.name, call.function.arguments) for call in choice.message.tool_calls]


async def test_forced_calls_are_valid_whole_and_streamed(client: Any) -> None:
    whole = await ask(client, tool_choice="required")
    (choice,) = whole.choices
    assert len(checked_calls(choice)) == 1
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)

    fields: dict[str, Any] = {"tools": [ADD], "tool_choice": "required", "parallel_tool_calls": False, "seed": 3}
    async with client.chat.completions.stream(
        model="tiny", messages=ASKED, max_tokens=150, stream_options={"include_usage": True}, **fields
    ) as stream:
        streamed = await stream.get_final_completion()
    assert checked_calls(streamed.choices[0]) == checked_calls(choice)
    assert streamed.choices[0].finish_reason == "tool_calls"
    assert streamed.usage.completion_tokens == whole.usage.completion_tokens


async def test_a_named_function_is_called(client: Any) -> None:
    named: Any = {"type": "function", "function": {"name": "stop"}}
    (choice,) = (await ask(client, tools=[ADD, STOP], tool_choice=named)).choices
    (call,) = choice.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("stop", "{}")
    assert choice.finish_reason == "stop"


async def test_several_choices_and_log_probabilities_stay_right(client: Any) -> None:
    fields: dict[str, Any] = {"tool_choice": "required", "n": 2, "logprobs": True, "top_logprobs": 1}
    whole = await ask(client, **fields)
    calls = {choice.index: checked_calls(choice) for choice in whole.choices}
    num_tokens = {choice.index: len(choice.logprobs.content) for choice in whole.choices}
    assert sum(num_tokens.values()) == whole.usage.completion_tokens

    told: dict[int, int] = {0: 0, 1: 0}
    arguments: dict[int, str] = {0: "", 1: ""}
    async for chunk in await ask(client, stream=True, **fields):
        for choice in chunk.choices:
            told[choice.index] += len(choice.logprobs.content) if choice.logprobs else 0
            for call in choice.delta.tool_calls or []:
                arguments[choice.index] += call.function.arguments
    assert told == num_tokens
    assert arguments == {index: written for index, ((_, written),) in calls.items()}


@pytest.mark.parametrize("stream", [False, True])
async def test_what_the_grammar_library_refuses_names_the_field(client: Any, stream: bool) -> None:
    tool: Any = {"type": "function", "function": {"name": "odd", "parameters": UNKNOWN_KEYWORD}}
    schema = {"type": "json_schema", "json_schema": {"name": "odd", "schema": UNKNOWN_KEYWORD}}
    for fields, param in (
        ({"tools": [tool], "tool_choice": "required"}, "tools"),
        ({"tools": [], "response_format": schema}, "response_format.json_schema.schema"),
    ):
        with pytest.raises(openai.BadRequestError, match="unevaluatedProperties") as refused:
            await ask(client, stream=stream, **fields)
        assert refused.value.param == param
        assert f"{param} cannot be used" in refused.value.message


class Stone(pydantic.BaseModel):
    form: str = pydantic.Field(pattern="^(flat|round)$")


@pytest.mark.parametrize("way", ["parse", "stream"])
async def test_a_response_format_is_parsed_by_the_clients_helpers(client: Any, way: str) -> None:
    fields: dict[str, Any] = {
        "model": "tiny",
        "messages": ASKED,
        "response_format": Stone,
        "max_tokens": 400,
        "seed": 1,
    }
    if way == "parse":
        answer = await client.chat.completions.parse(**fields)
    else:
        async with client.chat.completions.stream(**fields) as stream:
            answer = await stream.get_final_completion()
    assert answer.choices[0].message.parsed.form in {"flat", "round"}
    assert answer.choices[0].finish_reason == "stop"


async def test_the_demo_model_is_made_to_call(serve: Any) -> None:
    args = AsyncEngineArgs(
        model=str(DEMO), served_model_name="tiny", cpu_threads=1, device="cpu", disable_log_requests=True
    )
    async with AsyncLLMEngine.from_engine_args(args, in_process=True) as engine, serve(engine) as server:
        (choice,) = (await ask(server.openai, tools=[ADD, STOP], tool_choice="required", temperature=0)).choices
    (call,) = choice.message.tool_calls
    assert call.function.name in {"add", "stop"}
    assert isinstance(json.loads(call.function.arguments), dict)
    assert choice.finish_reason == "tool_calls"
