"""What is found out of a model's tool calls when serving begins, and what that asks of the engine."""

import json
from pathlib import Path

import pytest

from headrace.engine.sampling_params import SamplingParams
from headrace.openai.schema.chat import ChatCompletionRequest
from headrace.openai.tools.forms import HERMES, LLAMA3_JSON
from headrace.openai.tools.grammar import FormTokens
from headrace.server.settings import ServerSettings
from headrace.server.tool_calls import ToolSupport, assistant_message, requested_tools, tool_support, with_tools
from headrace.tokenization import ByteTokenizer, ChatTemplate, TokenizationService, TokenizationSettings, Tokenizer
from headrace.tokenization.huggingface import HuggingFaceTokenizer

DEMO_TOKENIZER = Path(__file__).parents[2] / "models" / "demo" / "tokenizer.json"
HERMES_TEMPLATE = '{% if tools %}<tool_call>{"name": ..., "arguments": ...}</tool_call>{% endif %}'
REQUEST = ChatCompletionRequest(tools=[{"type": "function", "function": {"name": "now"}}])


def tokenizer_with_tags(*, are_special: bool) -> Tokenizer:
    spec = json.loads(DEMO_TOKENIZER.read_text(encoding="utf-8"))
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": are_special}
    spec["added_tokens"] += [
        {"id": 4096 + index, "content": tag, **flags} for index, tag in enumerate(("<tool_call>", "</tool_call>"))
    ]
    return HuggingFaceTokenizer(
        json.dumps(spec).encode(), name="tagged", chat_template=ChatTemplate({"tool_use": HERMES_TEMPLATE})
    )


async def support_of(tokenizer: Tokenizer, settings: ServerSettings) -> ToolSupport:
    async with TokenizationService(TokenizationSettings()) as tokenization:
        tokenization.register("model", tokenizer)
        return await tool_support(tokenization, model="model", settings=settings)


async def test_the_form_comes_from_the_chat_template() -> None:
    assert (await support_of(ByteTokenizer(), ServerSettings())).form is None
    found = await support_of(ByteTokenizer(chat_template=HERMES_TEMPLATE), ServerSettings())
    assert (found.form, found.tokens) == (HERMES, None)


async def test_a_setting_comes_before_the_chat_template() -> None:
    tokenizer = ByteTokenizer(chat_template=HERMES_TEMPLATE)
    found = await support_of(tokenizer, ServerSettings(tool_call_parser="llama3_json", enable_auto_tool_choice=False))
    assert (found.form, found.is_auto_allowed) == (LLAMA3_JSON, False)


@pytest.mark.parametrize("are_special", [False, True])
async def test_tags_that_are_special_tokens_are_kept_in_the_text(are_special: bool) -> None:
    found = await support_of(tokenizer_with_tags(are_special=are_special), ServerSettings())
    assert found.tokens == FormTokens(opener=4096, closer=4097)
    params = with_tools(SamplingParams(), REQUEST, found)
    assert params.skip_special_tokens is not are_special


def test_a_request_without_tools_is_left_as_it_is() -> None:
    params = SamplingParams()
    assert with_tools(params, ChatCompletionRequest(), ToolSupport(form=HERMES)) is params


async def test_a_long_answer_is_read_as_a_short_one_is() -> None:
    tools = requested_tools(REQUEST)
    assert tools is not None
    text = "word " * 10_000 + '\n<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    message = await assistant_message(text, tools, ToolSupport(form=HERMES))
    assert message.content == ("word " * 10_000).rstrip()
    assert message.tool_calls
    assert [call.function.name for call in message.tool_calls] == ["now"]
