"""Grammars of tool calls, tried with the grammar library itself: what they let through and what not."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from llguidance import LLMatcher, LLTokenizer

from headrace.openai.schema.tools import FunctionDefinition
from headrace.openai.tools.forms import BARE_JSON, HERMES, LLAMA3_JSON, ToolForm
from headrace.openai.tools.grammar import FormTokens, calls_or_json, forced_calls, text_with_calls
from headrace.openai.tools.parser import ToolCallParser

DEMO_TOKENIZER = Path(__file__).parents[2] / "models" / "demo" / "tokenizer.json"
ADD = FunctionDefinition(
    name="add",
    parameters={
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/number"}},
        "required": ["a"],
        "additionalProperties": False,
        "$defs": {"number": {"type": "integer"}},
    },
    strict=True,
)
NOW = FunctionDefinition(name="now")
ADD_CALL: Mapping[str, object] = {"a": 1}


def tokenizer(*, has_tags: bool) -> tuple[LLTokenizer, FormTokens | None]:
    """The demo model's, perhaps with a token for each of Hermes' tags."""
    spec = json.loads(DEMO_TOKENIZER.read_text(encoding="utf-8"))
    if not has_tags:
        return LLTokenizer(json.dumps(spec), eos_token=[2]), None
    first = max(spec["model"]["vocab"].values()) + 1  # it counts the added ones too
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    spec["added_tokens"] += [
        {"id": first + index, "content": tag, **flags} for index, tag in enumerate(("<tool_call>", "</tool_call>"))
    ]
    return LLTokenizer(json.dumps(spec), eos_token=[2]), FormTokens(opener=first, closer=first + 1)


TOKENIZERS = {has_tags: tokenizer(has_tags=has_tags) for has_tags in (False, True)}


def accepts(grammar: str, text: str, *, has_tags: bool = False) -> bool:
    """Whether `text` is a whole answer."""
    library, tokens = TOKENIZERS[has_tags]
    matcher = LLMatcher(library, grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    token_ids: list[int] = []
    for piece in text.replace("<tool_call>", "\0<\0").replace("</tool_call>", "\0>\0").split("\0"):
        if piece in ("<", ">") and tokens is not None:
            token_ids.append(tokens.opener if piece == "<" else tokens.closer)
        else:
            written = {"<": "<tool_call>", ">": "</tool_call>"}.get(piece, piece)
            token_ids += library.tokenize_str(written)
    return all(matcher.consume_token(token_id) for token_id in token_ids) and matcher.is_accepting()


def call(form: ToolForm, name: str, arguments: Mapping[str, object]) -> str:
    written = f'{{"name": "{name}", "{form.argument_key}": {json.dumps(arguments)}}}'
    return f"<tool_call>\n{written}\n</tool_call>" if form is HERMES else written


forms = pytest.mark.parametrize(
    ("form", "has_tags"), [(HERMES, False), (HERMES, True), (LLAMA3_JSON, False), (BARE_JSON, False)]
)


@forms
def test_a_forced_answer_is_calls_by_their_schemas(form: ToolForm, has_tags: bool) -> None:
    grammar = forced_calls(form, [ADD, NOW], tokens=TOKENIZERS[has_tags][1], allows_several=True)
    both = call(form, "add", {"a": 1}) + form.between + call(form, "now", {})
    assert accepts(grammar, both, has_tags=has_tags)
    assert not accepts(grammar, call(form, "add", {"a": "one"}), has_tags=has_tags)
    assert not accepts(grammar, call(form, "sub", {}), has_tags=has_tags)
    assert not accepts(grammar, "Let me add.", has_tags=has_tags)
    assert not accepts(grammar, "", has_tags=has_tags)
    parser = ToolCallParser(form, tool_names=["add", "now"])
    told = [parser.feed(both), parser.finish()]
    assert [(c.name, c.arguments) for delta in told for c in delta.calls] == [("add", '{"a": 1}'), ("now", "{}")]
    assert not any(delta.content for delta in told)


@forms
def test_one_call_only_is_one_call(form: ToolForm, has_tags: bool) -> None:
    grammar = forced_calls(form, [ADD], tokens=TOKENIZERS[has_tags][1], allows_several=False)
    one = call(form, "add", {"a": 1})
    assert accepts(grammar, one, has_tags=has_tags)
    assert not accepts(grammar, one + form.between + one, has_tags=has_tags)


@pytest.mark.parametrize(("form", "has_tags"), [(HERMES, False), (HERMES, True), (LLAMA3_JSON, False)])
def test_a_strict_function_is_called_by_its_schema_amid_any_text(form: ToolForm, has_tags: bool) -> None:
    grammar = text_with_calls(form, [ADD, NOW], tokens=TOKENIZERS[has_tags][1], allows_several=True)
    assert accepts(grammar, "Nothing to add. {a} < b", has_tags=has_tags)
    assert accepts(grammar, "I add.\n" + call(form, "add", {"a": 1}), has_tags=has_tags)
    assert accepts(grammar, call(form, "add", {"a": 1}) + "\n" + call(form, "now", {"zone": 5}), has_tags=has_tags)
    assert not accepts(grammar, "I add.\n" + call(form, "add", {"b": 1}), has_tags=has_tags)
    assert not accepts(grammar, "I add.\n" + call(form, "sub", {}), has_tags=has_tags)


@forms
def test_an_answer_that_calls_nothing_keeps_to_the_response_format(form: ToolForm, has_tags: bool) -> None:
    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
    tokens = TOKENIZERS[has_tags][1]
    grammar = calls_or_json(form, [ADD], schema=schema, tokens=tokens, allows_several=False)
    assert accepts(grammar, '{"sum": 5}', has_tags=has_tags)
    assert accepts(grammar, call(form, "add", {"a": 1}), has_tags=has_tags)
    assert not accepts(grammar, "The sum is 5.", has_tags=has_tags)


@pytest.mark.parametrize(
    ("schema", "is_open"),
    [
        ({}, True),
        ({"properties": {"a": {"type": "integer"}}}, False),
        ({"properties": {"a": {"type": "integer"}}, "additionalProperties": True}, True),
        ({"anyOf": [{"properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}]}, True),
    ],
)
def test_arguments_that_a_schema_does_not_declare_are_left_out(schema: dict[str, object], is_open: bool) -> None:
    function = FunctionDefinition(name="add", parameters=schema)
    grammar = forced_calls(HERMES, [function], tokens=None, allows_several=False)
    assert accepts(grammar, call(HERMES, "add", {"a": 1, "b": 2})) == is_open


def test_names_may_hold_any_character() -> None:
    odd = FunctionDefinition(name='größe."x"')
    grammar = forced_calls(HERMES, [odd], tokens=None, allows_several=False)
    text = '<tool_call>\n{"name": "größe.\\"x\\"", "arguments": {}}\n</tool_call>'
    assert accepts(grammar, text)
