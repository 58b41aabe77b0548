"""Rendering equals transformers' on real and on awkward templates."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import InvalidRequestError, TokenizationError, UnsupportedError
from headrace.tokenization import ChatTemplate

_USER = {"role": "user", "content": "Hello <b>&amp; \u00e9\u4f60\n"}
_DIALOGUE = [
    {"role": "system", "content": "Be brief."},
    _USER,
    {"role": "assistant", "content": "  Hi.  "},
    {"role": "user", "content": "And?"},
]
_WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Das Wetter f\u00fcr <Ort>",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
_TOOL_DIALOGUE = [
    _USER,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "weather", "arguments": {"city": "K\u00f6ln"}}}
        ],
    },
    {"role": "tool", "tool_call_id": "1", "content": '{"celsius": 21}'},
    {"role": "tool", "tool_call_id": "2", "content": "none"},
]

_LLAMA = """{{ bos_token }}{% for message in messages %}
    {%- if message['role'] not in ['system', 'user', 'assistant'] %}
        {{- raise_exception('Unknown role ' + message['role']) }}
    {%- endif %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}
"""
_LOOP_CONTROLS = """{% for message in messages %}
  {% if message.role == 'system' %}{% continue %}{% endif %}
  {% if loop.index > 3 %}{% break %}{% endif %}
[{{ message.role }}] {{ message.content }}{{ eos_token }}
{% endfor %}"""
_GENERATION = """{%- set ns = namespace(count=0) -%}
{%- for message in messages -%}
  {%- if message['role'] == 'assistant' -%}
    {% generation %}{{ message['content'] }}{{ eos_token }}{% endgeneration %}
  {%- else -%}
    {%- set ns.count = ns.count + 1 -%}{{ ns.count ~ ':' ~ message['content'] }}
  {%- endif -%}
{%- endfor -%}"""
_JSON = """{{ messages | tojson }}
{{ messages[0] | tojson(indent=2) }} {{ {'b': 1, 'a': [none, true]} | tojson(sort_keys=true) }}
{%- if tools is not none %}{% for tool in tools %}{{ tool.function.description | tojson }}{% endfor %}{% endif %}"""
_KWARGS = """{% if enable_thinking is defined and enable_thinking is false %}<nothink>{% endif -%}
{{ messages[-1]['content'] }}{{ pad_token }}{{ documents is none }}"""
_REASONING = (
    """{% for m in messages %}{{ m.reasoning_content or '' }}|{{ m.thinking or '' }}|{{ m.content }}{% endfor %}"""
)
_PARTS = """{% for m in messages %}{% if m['content'] is string %}{{ m['content'] }}{% else %}
{%- for part in m['content'] %}{% if part['type'] == 'text' %}<{{ part['text'] }}>{% endif %}{% endfor %}
{%- endif %}{% endfor %}"""

_SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


def _reference(template: str) -> Callable[..., str]:
    """transformers' rendering of `template`, over a tokenizer without a vocabulary."""
    transformers = pytest.importorskip("transformers")
    empty = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=empty, chat_template=template, **_SPECIAL)

    def render(messages: Sequence[Mapping[str, object]], **options: object) -> str:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, **options))

    return render


def _assert_same(template: str, messages: Sequence[Mapping[str, object]], **options: Any) -> None:
    kwargs = options.pop("template_kwargs", {})
    expected = _reference(template)(messages, **{"add_generation_prompt": True, **options, **kwargs})
    ours = ChatTemplate(template, special_tokens=_SPECIAL)
    assert ours.render(messages, **options, template_kwargs=kwargs) == expected


@pytest.fixture(scope="session")
def qwen_template(data_file: Callable[[str], Path]) -> str:
    return str(json.loads(data_file("qwen2.5_tokenizer_config.json").read_text())["chat_template"])


@pytest.mark.parametrize("messages", [[_USER], _DIALOGUE, _TOOL_DIALOGUE])
@pytest.mark.parametrize("tools", [None, [_WEATHER]])
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_qwen_renders_as_transformers_does(
    qwen_template: str,
    messages: list[dict[str, object]],
    tools: list[dict[str, object]] | None,
    add_generation_prompt: bool,
) -> None:
    _assert_same(qwen_template, messages, tools=tools, add_generation_prompt=add_generation_prompt)


def test_any_dialogue_renders_as_transformers_does(qwen_template: str) -> None:
    expected, ours = _reference(qwen_template), ChatTemplate(qwen_template, special_tokens=_SPECIAL)
    message = st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": st.text(max_size=20)}
    )

    @settings(deadline=None)
    @given(st.lists(message, min_size=1, max_size=5), st.booleans())
    def check(messages: list[dict[str, str]], prompts: bool) -> None:
        assert ours.render(messages, add_generation_prompt=prompts) == expected(messages, add_generation_prompt=prompts)

    check()


@pytest.mark.parametrize("template", [_LLAMA, _LOOP_CONTROLS, _GENERATION, _JSON, _KWARGS, _REASONING, _PARTS])
def test_awkward_templates_render_as_transformers_does(template: str) -> None:
    _assert_same(template, _DIALOGUE)
    _assert_same(template, _DIALOGUE, add_generation_prompt=False, tools=[_WEATHER])


def test_template_kwargs_and_reasoning_names_reach_the_template_as_in_transformers() -> None:
    _assert_same(_KWARGS, [_USER], template_kwargs={"enable_thinking": False, "pad_token": "<pad>"})
    for name in ("reasoning", "reasoning_content", "thinking"):
        _assert_same(_REASONING, [{"role": "assistant", "content": "x", name: "because"}])


@pytest.mark.parametrize("template", [_LLAMA, _LOOP_CONTROLS, _PARTS])
@pytest.mark.parametrize("final", ["The answer is", "The answer is  ", " \n"])
def test_continuing_the_final_message_ends_where_its_text_ends(template: str, final: str) -> None:
    messages = [_USER, {"role": "assistant", "content": final}]
    _assert_same(template, messages, continue_final_message=True, add_generation_prompt=False)


def test_continuing_the_last_text_part_ends_where_its_text_ends() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    messages = [_USER, {"role": "assistant", "content": parts}]
    _assert_same(_PARTS, messages, continue_final_message=True, add_generation_prompt=False)


@pytest.mark.parametrize(
    ("messages", "options", "param"),
    [
        ([{"role": "user", "content": "x"}], {"add_generation_prompt": True}, "continue_final_message"),
        ([{"role": "assistant"}], {"add_generation_prompt": False}, "continue_final_message"),
    ],
)
def test_a_message_that_cannot_be_continued_is_refused(
    messages: list[dict[str, object]], options: dict[str, bool], param: str
) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        ChatTemplate(_LLAMA).render(messages, continue_final_message=True, **options)
    assert refusal.value.param == param


def test_a_template_that_drops_the_final_message_cannot_continue_it() -> None:
    with pytest.raises(InvalidRequestError, match="drops or changes the final message"):
        ChatTemplate("{{ messages[0].content }}").render(
            [_USER, {"role": "assistant", "content": "x"}], continue_final_message=True, add_generation_prompt=False
        )


def test_text_parts_are_joined_by_newlines_for_a_template_that_wants_text() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    template = ChatTemplate("{{ messages[0]['content'] }}")
    assert template.render([{"role": "user", "content": parts}]) == "one\ntwo"


def test_text_becomes_a_part_for_a_template_that_knows_only_parts() -> None:
    template = ChatTemplate("{% for m in messages %}{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endfor %}")
    assert template.render([{"role": "user", "content": "one"}]) == "<one>"


def test_a_template_that_reads_parts_through_a_variable_gets_parts() -> None:
    template = ChatTemplate(
        "{% set body = messages[0]['content'] %}{% if body is string %}{{ body }}{% else %}"
        "{% for part in body %}<{{ part.text }}>{% endfor %}{% endif %}"
    )
    assert template.render([{"role": "user", "content": [{"type": "text", "text": "one"}]}]) == "<one>"
    assert template.render([{"role": "user", "content": "one"}]) == "one"


def test_tool_call_arguments_given_as_json_text_are_read(qwen_template: str) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "K\u00f6ln"}'}}
    messages = [_TOOL_DIALOGUE[0], {"role": "assistant", "tool_calls": [call]}, *_TOOL_DIALOGUE[2:]]
    template = ChatTemplate(qwen_template)
    assert template.render(messages) == template.render(_TOOL_DIALOGUE)


_JOINING = "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + ';' }}{% endfor %}"
"""As many models' templates do it, which fail where there is no content."""


@pytest.mark.parametrize("nothing", [{}, {"content": None}])
def test_calls_without_text_are_empty_to_a_template_that_needs_text(nothing: dict[str, object]) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    messages = [_USER, {"role": "assistant", "tool_calls": [call], **nothing}, _TOOL_DIALOGUE[2]]
    with_empty_text = [_USER, {"role": "assistant", "content": ""}, _TOOL_DIALOGUE[2]]
    assert ChatTemplate(_JOINING).render(messages) == ChatTemplate(_JOINING).render(with_empty_text)


def test_a_template_that_can_do_without_content_sees_none() -> None:
    template = "{% for message in messages %}{{ message['content'] is defined }};{% endfor %}"
    assert ChatTemplate(template).render(_TOOL_DIALOGUE) == "True;False;True;True;"


@pytest.mark.parametrize("nothing", [{}, {"content": None}])
def test_a_question_without_text_is_refused_with_the_field(nothing: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError, match=r"messages\[1\].content is missing") as refusal:
        ChatTemplate(_JOINING).render([_USER, {"role": "user", **nothing}])
    assert refusal.value.param == "messages[1].content"


def test_the_messages_given_in_are_not_changed() -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "one"}]}, {"role": "assistant", "content": "two"}]
    before = json.dumps(messages)
    ChatTemplate(_PARTS).render(messages, continue_final_message=True, add_generation_prompt=False)
    assert json.dumps(messages) == before


@pytest.mark.parametrize(
    ("messages", "error", "param"),
    [
        ([], InvalidRequestError, "messages"),
        (["hello"], InvalidRequestError, "messages[0]"),
        ([{"content": "x"}], InvalidRequestError, "messages[0].role"),
        ([{"role": "user", "content": 7}], InvalidRequestError, "messages[0].content"),
        ([{"role": "user", "content": [7]}], InvalidRequestError, "messages[0].content[0]"),
        ([_USER, {"role": "user", "content": [{"type": "text"}]}], InvalidRequestError, "messages[1].content[0].text"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], UnsupportedError, "messages[0].content[0].type"),
        ([{"role": "assistant", "tool_calls": 7}], InvalidRequestError, "messages[0].tool_calls"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
            InvalidRequestError,
            "messages[0].tool_calls[0].function.arguments",
        ),
        ([{"role": "wizard", "content": "x"}], InvalidRequestError, "messages"),
    ],
)
def test_bad_messages_are_refused_with_the_field(messages: Any, error: type[InvalidRequestError], param: str) -> None:
    with pytest.raises(error) as refusal:
        ChatTemplate(_LLAMA).render(messages)
    assert refusal.value.param == param
    assert type(refusal.value) is error


def test_what_the_template_says_reaches_the_client() -> None:
    with pytest.raises(InvalidRequestError, match="Unknown role wizard"):
        ChatTemplate(_LLAMA).render([{"role": "wizard", "content": "x"}])


def test_template_kwargs_may_not_replace_the_messages() -> None:
    with pytest.raises(InvalidRequestError, match="may not set messages") as refusal:
        ChatTemplate(_LLAMA).render([_USER], template_kwargs={"messages": []})
    assert refusal.value.param == "chat_template_kwargs"


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__ }}",
        "{% set _ = messages.append(1) %}",
        "{{ strftime_now.__globals__['os'] }}",
        "{{ range(10**9) }}",
    ],
)
def test_templates_are_held_in_a_sandbox(template: str) -> None:
    with pytest.raises(InvalidRequestError):
        ChatTemplate(template).render([_USER])


def test_a_template_that_is_not_jinja_is_refused_at_construction() -> None:
    with pytest.raises(TokenizationError, match="chat template 'default' is not valid"):
        ChatTemplate("{% if %}")


def test_without_a_default_template_only_tools_can_be_served() -> None:
    template = ChatTemplate({"tool_use": "tools"})
    assert template.render([_USER], tools=[_WEATHER]) == "tools"
    with pytest.raises(InvalidRequestError, match="no default chat template"):
        template.render([_USER])
