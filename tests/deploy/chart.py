"""Makes manifests of the Helm chart without Helm: the few constructs that the chart uses, any other is an error.

Keeps the chart simple, and lets it be tested where there is no `helm`; where there is one, both are compared.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

_TAG = re.compile(r"(\s*)\{\{(-?)\s*(.*?)\s*(-?)\}\}", re.DOTALL)
_PATH = re.compile(r"[.$][\w.]*")

Scope = dict[str, Any]


def render_chart(chart: Path, values: dict[str, Any], *, release: str) -> Iterator[dict[str, Any]]:
    """The chart's objects, with `values` over its own."""
    meta = yaml.safe_load((chart / "Chart.yaml").read_text())
    own = yaml.safe_load((chart / "values.yaml").read_text())
    scope = {
        "Values": _merged(own, values),
        "Release": {"Name": release, "Namespace": "default"},
        "Chart": {"AppVersion": meta["appVersion"], "Name": meta["name"]},
    }
    for template in sorted((chart / "templates").glob("*.yaml")):
        text, rest = _block(_tokens(template.read_text()), scope, {})
        assert rest is None, f"{template.name}: an end too many"
        yield from (one for one in yaml.safe_load_all(text) if one)


def render_text(text: str, scope: Scope) -> str:
    """One template."""
    return _block(_tokens(text), scope, {})[0]


def _merged(own: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    merged = dict(own)
    for name, value in given.items():
        is_map = isinstance(value, dict) and isinstance(merged.get(name), dict)
        merged[name] = _merged(merged[name], value) if is_map else value
    return merged


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    """Pieces of text, and what stands between braces."""
    end, trims_next = 0, False
    for found in _TAG.finditer(text):
        before = text[end : found.start()]
        yield "text", (before.lstrip() if trims_next else before) + ("" if found[2] else found[1])
        yield "tag", found[3]
        end, trims_next = found.end(), bool(found[4])
    yield "text", text[end:].lstrip() if trims_next else text[end:]


def _block(tokens: Iterator[tuple[str, str]], scope: Scope, variables: Scope) -> tuple[str, str | None]:
    """What the tokens up to `end` or `else` make, and which of these it was."""
    out: list[str] = []
    for kind, token in tokens:
        word, _, rest = token.partition(" ")
        if kind == "text":
            out.append(token)
        elif word in {"end", "else"}:
            return "".join(out), word
        elif word == "if":
            out.append(_if(tokens, scope, variables, condition=rest))
        elif word == "range":
            out.append(_range(tokens, scope, variables, what=rest))
        else:
            out.append(_text(_value(token, scope, variables)))
    return "".join(out), None


def _if(tokens: Iterator[tuple[str, str]], scope: Scope, variables: Scope, *, condition: str) -> str:
    then, ended_by = _block(tokens, scope, variables)
    otherwise = ""
    if ended_by == "else":
        otherwise, ended_by = _block(tokens, scope, variables)
    assert ended_by == "end", f"{condition}: not ended"
    return then if _value(condition, scope, variables) else otherwise


def _range(tokens: Iterator[tuple[str, str]], scope: Scope, variables: Scope, *, what: str) -> str:
    key, value, path = re.fullmatch(r"\$(\w+), \$(\w+) := (\S+)", what).groups()  # type: ignore[union-attr]
    body: list[tuple[str, str]] = []
    for token in tokens:
        body.append(token)
        assert token[1].partition(" ")[0] not in {"if", "range"}, "nothing is nested in a range here"
        if token == ("tag", "end"):
            break
    items = sorted(_value(path, scope, variables).items())
    return "".join(_block(iter(body), scope, variables | {key: one, value: other})[0] for one, other in items)


def _value(expression: str, scope: Scope, variables: Scope) -> Any:
    first, *pipes = (part.strip() for part in expression.split("|"))
    value = _call(first.split(), scope, variables)
    for pipe in pipes:
        name, *arguments = pipe.split()
        value = _FUNCTIONS[name](*(_operand(one, scope, variables) for one in arguments), value)
    return value


def _call(words: list[str], scope: Scope, variables: Scope) -> Any:
    if words[0] in _FUNCTIONS:
        return _FUNCTIONS[words[0]](*(_operand(one, scope, variables) for one in words[1:]))
    assert len(words) == 1, f"{words[0]} is no function that is known here"
    return _operand(words[0], scope, variables)


def _operand(word: str, scope: Scope, variables: Scope) -> Any:
    if word.isdigit():
        return int(word)
    assert _PATH.fullmatch(word), f"{word!r} is not known here"
    if word.startswith("$"):
        return variables[word[1:]]
    value: Any = scope
    for name in word.strip(".").split("."):
        value = value[name]
    return value


def _text(value: Any) -> str:
    return {True: "true", False: "false"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def _nindent(width: int, text: str) -> str:
    return "\n" + "\n".join(" " * width + line for line in text.splitlines())


_FUNCTIONS: dict[str, Any] = {
    "add": lambda *numbers: sum(numbers),
    "default": lambda default, value: value or default,
    "nindent": _nindent,
    "quote": lambda value: json.dumps(_text(value)),
    "toYaml": lambda value: yaml.safe_dump(value, default_flow_style=False).rstrip("\n"),
}
