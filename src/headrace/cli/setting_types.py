"""Reads one setting's text (or YAML value) by the type of its field. Knows nothing of where the text came from."""

import json
import types
import typing
from collections.abc import Callable
from typing import Literal

from headrace.units import NumBytes, Seconds, Secret, parse_duration, parse_size

_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})


def read(value: object, field_type: object) -> object:
    """`value` as `field_type`; raises ValueError saying what was expected."""
    return _reader(field_type)(value)


def is_bool(field_type: object) -> bool:
    """Whether the field is a switch (`bool` or `bool | None`)."""
    return _inner(field_type) is bool


def is_tuple(field_type: object) -> bool:
    """Whether the field takes several texts."""
    return typing.get_origin(_inner(field_type)) is tuple


def placeholder(field_type: object) -> str:
    """What stands for the value in a help text."""
    inner = _inner(field_type)
    if inner == Seconds:
        return "DURATION"
    if inner == NumBytes:
        return "SIZE"
    if typing.get_origin(inner) is Literal:
        return "{" + ",".join(map(str, typing.get_args(inner))) + "}"
    return {int: "N", float: "X"}.get(inner, "TEXT") if isinstance(inner, type) else "TEXT"


def _reader(field_type: object) -> Callable[[object], object]:
    if field_type == Seconds:
        return lambda value: parse_duration(str(value))
    if field_type == NumBytes:
        return lambda value: parse_size(str(value))
    if field_type == Secret:
        return _read_str
    origin = typing.get_origin(field_type)
    if origin in (typing.Union, types.UnionType):
        return lambda value: None if str(value).lower() == "none" else read(value, _inner(field_type))
    if origin is Literal:
        return lambda value: _one_of(value, typing.get_args(field_type))
    if origin is tuple:
        return _read_tuple
    readers: dict[object, Callable[[object], object]] = {
        bool: _read_bool,
        int: _read_int,
        float: _read_float,
        str: _read_str,
    }
    return readers[field_type]


def _inner(field_type: object) -> object:
    """The type under `X | None`."""
    if typing.get_origin(field_type) in (typing.Union, types.UnionType):
        return next(arg for arg in typing.get_args(field_type) if arg is not types.NoneType)
    return field_type


def _one_of(value: object, choices: tuple[object, ...]) -> object:
    for choice in choices:
        if str(value) == str(choice):
            return choice
    raise ValueError(f"expected one of {', '.join(map(str, choices))}")


def _read_tuple(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    if isinstance(value, (list, tuple)):
        return tuple(json.dumps(part) if isinstance(part, dict) else str(part) for part in value)
    raise ValueError("expected a list of texts")


def _read_bool(value: object) -> bool:
    text = str(value).lower()
    if text not in _TRUE | _FALSE:
        raise ValueError("expected true or false")
    return text in _TRUE


def _read_int(value: object) -> int:
    if not isinstance(value, (bool, float)):
        try:
            return int(str(value))
        except ValueError:
            pass
    raise ValueError("expected a whole number")


def _read_float(value: object) -> float:
    try:
        return float(str(value))
    except ValueError:
        raise ValueError("expected a number") from None


def _read_str(value: object) -> str:
    if isinstance(value, (dict, list)):
        raise ValueError("expected a text")
    return str(value)
