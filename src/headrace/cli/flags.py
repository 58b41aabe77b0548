"""One flag per field of a settings dataclass, documented by the string literal under the field."""

import argparse
import ast
import dataclasses
import inspect
import itertools
import textwrap
import typing
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from headrace.cli.setting_types import is_bool, is_tuple, placeholder

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def add_flags(
    parser: argparse._ActionsContainer,
    settings_type: "type[DataclassInstance]",
    *,
    prefix: str = "",
    skip: Sequence[str] = (),
) -> None:
    """Give `parser` a flag for each field of `settings_type` but those in `skip`. A flag that is not given is None."""
    docs = field_docs(settings_type)
    for field, field_type in typed_fields(settings_type):
        if field.name in skip:
            continue
        flag = flag_of(prefix + field.name)
        text = f"{docs.get(field.name, '')}{_default_text(field)}".replace("%", "%%")
        if is_bool(field_type):
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=text)
        elif is_tuple(field_type):
            parser.add_argument(flag, action="append", default=None, metavar=placeholder(field_type), help=text)
        else:
            parser.add_argument(flag, default=None, metavar=placeholder(field_type), help=text)


def flag_of(name: str) -> str:
    """The flag of the field `name`."""
    return "--" + name.replace("_", "-")


def typed_fields(settings_type: "type[DataclassInstance]") -> Iterator[tuple["dataclasses.Field[object]", object]]:
    """The fields of a settings dataclass, each with its resolved type."""
    hints = typing.get_type_hints(settings_type, include_extras=True)
    for field in dataclasses.fields(settings_type):
        if field.init:
            yield field, hints[field.name]


def field_docs(settings_type: type) -> dict[str, str]:
    """The string literal under each field, whitespace folded; fields of base classes included."""
    docs: dict[str, str] = {}
    for cls in reversed(settings_type.__mro__[:-1]):
        if dataclasses.is_dataclass(cls):
            docs.update(_docs_in_source(cls))
    return docs


def _docs_in_source(cls: type) -> Iterator[tuple[str, str]]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    for statement, following in itertools.pairwise(body):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
            and isinstance(following.value.value, str)
        ):
            yield statement.target.id, " ".join(following.value.value.split())


def _default_text(field: "dataclasses.Field[object]") -> str:
    if field.default is dataclasses.MISSING or field.default in (None, (), ""):
        return ""
    return f" (default: {field.default})"
