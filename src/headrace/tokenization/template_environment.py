"""The Jinja environment in which chat templates run: sandboxed, since templates come with models and are not trusted.

Has what transformers gives to templates: `tojson` without HTML, `raise_exception`, `strftime_now`, `{% generation %}`.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox

_OF_DICTS = frozenset(dir(dict))
_HARMLESS: Mapping[type, frozenset[str]] = {
    dict: frozenset({"get", "items", "keys", "values"}),
    str: frozenset(
        {"endswith", "find", "lower", "lstrip", "replace", "rstrip", "split", "startswith", "strip", "upper"}
    ),
    jinja2.runtime.LoopContext: frozenset({"first", "index", "index0", "last", "length", "nextitem", "previtem"}),
}
"""Attributes that the sandbox lets every template have; it takes 2 to 4 us to see so."""


class TemplateEnvironment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Gives what the sandbox gives, sooner for what templates ask most: messages' fields, loops, strings' methods."""

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlocks, jinja2.ext.loopcontrols])
        self.filters["tojson"] = _tojson
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def getattr(self, obj: object, attribute: str) -> object:
        """`obj.attribute` in a template, which is `obj["attribute"]` where a dict has no such attribute."""
        kind = type(obj)
        if kind is dict and attribute not in _OF_DICTS:
            fields: dict[str, object] = obj  # type: ignore[assignment]  # mypy does not follow `kind`
            return fields[attribute] if attribute in fields else self.undefined(obj=obj, name=attribute)
        if attribute in _HARMLESS.get(kind, ()):
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)


class _GenerationBlocks(jinja2.ext.Extension):
    """Lets templates mark what the assistant generates with `{% generation %}`; the mark itself renders nothing."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 reads a plain set

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML; models were trained on plain JSON. Positional as templates call it."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)  # noqa: DTZ005 - templates show the local date, as transformers does
