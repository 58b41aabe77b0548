"""What makes a model write calls that can be read back: a grammar in Lark's notation, as llguidance reads it.

Each call is written exactly as the form has it, its arguments by the function's own JSON schema.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.openai.schema.tools import FunctionDefinition
from headrace.openai.tools.forms import ToolForm

_NO_ARGUMENTS: Mapping[str, object] = {"type": "object", "properties": {}}

_LAYOUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""As Python's json writes it, which is what models have seen; without it a weak model can write spaces for ever."""

ANSWER_WHITESPACE = " ?"
"""Between the tokens of a JSON answer: were it any, a model could go on writing spaces until its tokens are used up."""

_OPEN_TO_MORE = frozenset({"$ref", "allOf", "anyOf", "oneOf", "if", "patternProperties", "unevaluatedProperties"})
"""A schema with properties and none of these declares all that its function knows; other arguments are left out."""

_OBJECT_START = r'"{" "\"name\"" ":" " "'
"""In pieces that the grammar of any other JSON object has too, so that both may stand in one place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormTokens:
    """The ids of a form's tags, where the vocabulary has a token for each. Other texts cannot spell such a token."""

    opener: int
    closer: int


def forced_calls(
    form: ToolForm, functions: Sequence[FunctionDefinition], *, tokens: FormTokens | None, allows_several: bool
) -> str:
    """The answer is a call, or several, and nothing else. Arguments follow their schemas, strict or not."""
    return _grammar(_calls(form, allows_several=allows_several), form, functions, tokens=tokens)


def calls_or_json(
    form: ToolForm,
    functions: Sequence[FunctionDefinition],
    *,
    schema: Mapping[str, object],
    tokens: FormTokens | None,
    allows_several: bool,
) -> str:
    """The answer is calls alone, or JSON by `schema`."""
    start = f"({_calls(form, allows_several=allows_several)}) | answer"
    answer = json.dumps({**schema, "x-guidance": {"whitespace_pattern": ANSWER_WHITESPACE}})
    return _grammar(start, form, _as_asked(functions), tokens=tokens) + f"answer: %json {answer}\n"


def text_with_calls(
    form: ToolForm, functions: Sequence[FunctionDefinition], *, tokens: FormTokens | None, allows_several: bool
) -> str:
    """Any text; where it begins a call, the call is of one of `functions`, and by its schema if that is strict."""
    start = "(free call)* free" if allows_several else "free call | free"
    if tokens is not None:
        return _grammar(start, form, _as_asked(functions), tokens=tokens) + f"free: <[^{tokens.opener}]>*\n"
    start = "called* TEXT" if allows_several else "called | TEXT"
    opening, rest = _lazy_opening(form)
    rules = f"called: opening {rest}\nopening[lazy]: TEXT {_text(opening)}\nTEXT: /(.|\\n)*/\n"
    return _grammar(start, form, _as_asked(functions), tokens=None) + rules


def is_any_strict(functions: Sequence[FunctionDefinition]) -> bool:
    return any(function.strict for function in functions)


def _calls(form: ToolForm, *, allows_several: bool) -> str:
    return f"call ({_text(form.between)} call)*" if allows_several else "call"


def _grammar(start: str, form: ToolForm, functions: Sequence[FunctionDefinition], *, tokens: FormTokens | None) -> str:
    lines = [
        "%llguidance {}",
        f"start: {start}",
        f"call: {_call(form, tokens=tokens)}",
        f'object: {_OBJECT_START} named "}}"',
        f"named: {' | '.join(f'named_{index}' for index in range(len(functions)))}",
    ]
    for index, function in enumerate(functions):
        begin = f'{_text(function.name)}, "{form.argument_key}": '
        lines.append(f"named_{index}: {_text(begin)} arguments_{index}")
        lines.append(f"arguments_{index}: %json {json.dumps(_arguments_schema(function))}")
    return "\n".join(lines) + "\n"


def _call(form: ToolForm, *, tokens: FormTokens | None) -> str:
    if form.closer is None:
        return "object"
    if tokens is not None:
        return f'<[{tokens.opener}]> "\\n" object "\\n" <[{tokens.closer}]>'
    return f"{_text(form.openers[0])} {_inner(form)}"


def _inner(form: ToolForm) -> str:
    return f'"\\n" object {_text(f"{chr(10)}{form.closer}")}'


def _lazy_opening(form: ToolForm) -> tuple[str, str]:
    """What tells a call from text, and the rest of the call."""
    return ('{"name": ', 'named "}"') if form.closer is None else (form.openers[0], _inner(form))


def _as_asked(functions: Sequence[FunctionDefinition]) -> list[FunctionDefinition]:
    """Those that are not strict take any arguments: a model that may choose is not held to their schemas."""
    return [
        function if function.strict else FunctionDefinition(name=function.name, parameters={"type": "object"})
        for function in functions
    ]


def _arguments_schema(function: FunctionDefinition) -> dict[str, object]:
    schema = _NO_ARGUMENTS if function.parameters is None else function.parameters
    declares_all = "properties" in schema and _OPEN_TO_MORE.isdisjoint(schema)
    closed = {"additionalProperties": False} if declares_all else {}
    return {"type": "object", **closed, **schema, "x-guidance": _LAYOUT}


def _text(text: str) -> str:
    """A literal of the notation, whose strings are JSON's."""
    return json.dumps(text, ensure_ascii=False)
