"""Tool calls in texts, whole and cut anywhere."""

import json
from collections.abc import Sequence
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.openai.tools.forms import BARE_JSON, HERMES, LLAMA3_JSON, ToolForm
from headrace.openai.tools.parser import ToolCallParser

Calls: TypeAlias = list[tuple[str, str]]

NAMES = ("weather", "add")


def read(form: ToolForm, pieces: Sequence[str], *, allows_several: bool = True) -> tuple[str, Calls]:
    """The content and the calls that the pieces of an answer join to."""
    parser = ToolCallParser(form, tool_names=NAMES, allows_several=allows_several)
    content = ""
    calls: dict[int, tuple[str, str]] = {}
    for told in [*map(parser.feed, pieces), parser.finish()]:
        content += told.content
        for call in told.calls:
            assert (call.name is not None) == (call.index not in calls), "the name comes first, and once"
            name, arguments = calls.get(call.index, (call.name or "", ""))
            calls[call.index] = (name, arguments + call.arguments)
    assert list(calls) == list(range(len(calls)))
    return content, list(calls.values())


def tagged(*calls: str) -> str:
    return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)


RAIN = '{"name": "weather", "arguments": {"city": "Rain\\" }</tool_call>"}}'
RAIN_ARGUMENTS = '{"city": "Rain\\" }</tool_call>"}'


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("No call here.\n", "No call here.\n", []),
        (tagged(RAIN), "", [("weather", RAIN_ARGUMENTS)]),
        ("Sure.\n" + tagged(RAIN) + "\n", "Sure.", [("weather", RAIN_ARGUMENTS)]),
        (tagged(RAIN, RAIN) + "\nDone.", "\nDone.", [("weather", RAIN_ARGUMENTS)] * 2),
        (tagged('{"arguments": {"a": [1, {}]}, "name": "add"}'), "", [("add", '{"a": [1, {}]}')]),
        (tagged('{"id": 5, "name": "add", "arguments": {}, "more": [2]}'), "", [("add", "{}")]),
        (tagged('{"name": "add"}'), "", [("add", "{}")]),
        (tagged('{"name": "add", "arguments": null}'), "", [("add", "{}")]),
        (tagged('{"name": "add", "arguments": "{\\"a\\": 1}"}'), "", [("add", '{"a": 1}')]),
        (tagged('{"name": "unheard of", "arguments": {}}'), "", [("unheard of", "{}")]),
        ('<tool_call>{"name": "add", "arguments": {"a": 1', "", [("add", '{"a": 1')]),
        ('<tool_call>{"name": "add", "arguments": {"a": 1}\n</tool_call>', "", [("add", '{"a": 1}')]),
        ('<tool_call>{"name": "add", "arguments": {"a": 1}}', "", [("add", '{"a": 1}')]),
        ("The tag <tool_call> begins a call.", "The tag <tool_call> begins a call.", []),
        ("<tool_call>{not JSON}</tool_call>", "<tool_call>{not JSON}</tool_call>", []),
        ('<tool_call>{"name": "add"', '<tool_call>{"name": "add"', []),
        ('<tool_call>{"name": "add", "arguments": [1]}', '<tool_call>{"name": "add", "arguments": [1]}', []),
        ('<tool_call>{"arguments": {}}</tool_call>', '<tool_call>{"arguments": {}}</tool_call>', []),
        ("a < b <tool_", "a < b <tool_", []),
        ("<tool_call>oh <tool_call>" + RAIN, "<tool_call>oh", [("weather", RAIN_ARGUMENTS)]),
    ],
)
def test_hermes_texts(text: str, content: str, calls: Calls) -> None:
    assert read(HERMES, [text]) == (content, calls)
    assert read(HERMES, list(text)) == (content, calls)


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("It rains {often}.", "It rains {often}.", []),
        ('{"name": "weather", "parameters": {"city": "Oslo"}}', "", [("weather", '{"city": "Oslo"}')]),
        ('<|python_tag|>{"name": "add", "parameters": {}}', "", [("add", "{}")]),
        ('{"type": "function", "name": "add", "parameters": {}}', "", [("add", "{}")]),
        (
            '{"name": "add", "parameters": {"a": 1}}; {"name": "weather", "arguments": {}}',
            "",
            [("add", '{"a": 1}'), ("weather", "{}")],
        ),
        ('I call: {"name": "add", "parameters": {}}', "I call:", [("add", "{}")]),
        ('{"name": "Alice", "parameters": {}}', '{"name": "Alice", "parameters": {}}', []),
        ('{"name": "add"}', '{"name": "add"}', []),
        ('{"answer": {"name": 5}}', '{"answer": {"name": 5}}', []),
        ("<|python_tag|>print(1)", "<|python_tag|>print(1)", []),
    ],
)
def test_llama_texts(text: str, content: str, calls: Calls) -> None:
    assert read(LLAMA3_JSON, [text]) == (content, calls)
    assert read(LLAMA3_JSON, list(text)) == (content, calls)


def test_bare_calls_of_no_known_form() -> None:
    text = '{"name": "add", "arguments": {"a": 1}}'
    assert read(BARE_JSON, list(text)) == ("", [("add", '{"a": 1}')])
    assert read(BARE_JSON, list(text[:9])) == (text[:9], [])


def test_calls_after_the_only_one_wanted_are_dropped() -> None:
    assert read(HERMES, [tagged(RAIN, RAIN)], allows_several=False) == ("", [("weather", RAIN_ARGUMENTS)])


def test_arguments_are_told_while_they_are_written() -> None:
    parser = ToolCallParser(HERMES, tool_names=NAMES)
    assert not parser.feed('Yes\n<tool_call>\n{"name": "add", "argu').calls
    (first,) = parser.feed('ments": {"a":').calls
    (second,) = parser.feed(" 12").calls
    assert (first.name, first.arguments) == ("add", '{"a":')
    assert (second.name, second.arguments) == (None, " 12")


def test_plain_text_is_told_at_once() -> None:
    parser = ToolCallParser(HERMES, tool_names=NAMES)
    assert parser.feed("It is < 5").content == "It is < 5"
    assert parser.feed(" <tool").content == ""
    assert parser.feed("box>").content == " <toolbox>"


fragments = st.lists(
    st.sampled_from(
        [
            *("<tool_call>", "</tool_call>", "<tool", "<|python_tag|>", "{", "}", "[", "]", '"', "\\", ":", ",", ";"),
            *('"name"', '"add"', '"arguments"', '"parameters": {', "null", "7", "text", " ", "\n", "é🌊"),
            *('{"name": "add", "arguments": {', '{"name": "x"', RAIN, '{"name": "add", "parameters": {"a": "{"}}'),
        ]
    ),
    max_size=14,
).map("".join)
forms = st.sampled_from([HERMES, LLAMA3_JSON, BARE_JSON])


@given(form=forms, text=fragments, data=st.data())
def test_where_a_text_is_cut_changes_nothing(form: ToolForm, text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = read(form, [text])
    assert read(form, pieces) == whole
    assert read(form, list(text)) == whole


@given(form=forms, text=fragments)
def test_a_text_without_calls_loses_no_character(form: ToolForm, text: str) -> None:
    content, calls = read(form, [text])
    if not calls:
        assert content == text


plain = st.text(st.characters(exclude_characters="<{", exclude_categories=["Cs"]), max_size=20)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from(["</tool_call>", '"}}', "\\"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@given(
    form=st.sampled_from([HERMES, LLAMA3_JSON]),
    before=plain,
    wanted=st.lists(
        st.tuples(st.sampled_from(NAMES), st.dictionaries(st.text(max_size=4), json_values, max_size=3)), max_size=3
    ),
    layout=st.sampled_from([None, 1]),
)
def test_calls_that_were_written_are_read_back(
    form: ToolForm, before: str, wanted: list[tuple[str, dict[str, object]]], layout: int | None
) -> None:
    written = [
        json.dumps({"name": name, form.argument_key: arguments}, ensure_ascii=False, indent=layout)
        for name, arguments in wanted
    ]
    text = before + (tagged(*written) if form is HERMES else "; ".join(written))
    content, calls = read(form, list(text))
    assert [(name, json.loads(arguments)) for name, arguments in calls] == wanted
    assert content == (before.rstrip(form.separators) if wanted else before)
