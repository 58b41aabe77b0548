"""Whether settings are of the types that they declare: for who builds them in Python; a command line reads texts."""

import types
from typing import Union, get_args, get_origin, get_type_hints

from headrace.errors import SettingsError

_NAMES = {str: "a text", int: "a whole number", float: "a number", bool: "True or False", types.NoneType: "None"}


def check_types(settings: object) -> None:
    """Raises SettingsError for the first field that is of another type; a whole number is a number too.

    Fields whose declared type is not made of plain ones are passed over.
    """
    for name, hint in get_type_hints(type(settings)).items():
        wanted = _plain_types(hint)
        value = getattr(settings, name)
        if wanted and not _is_one_of(value, wanted):
            names = " or ".join(_NAMES[kind] for kind in wanted)
            raise SettingsError(f"{name} is {value!r:.80}; it must be {names}", param=name)


def _plain_types(hint: object) -> tuple[type, ...]:
    """None of them, where there is another one among them."""
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    return tuple(kinds) if all(kind in _NAMES for kind in kinds) else ()


def _is_one_of(value: object, wanted: tuple[type, ...]) -> bool:
    if isinstance(value, bool):
        return bool in wanted
    return isinstance(value, wanted) or (isinstance(value, int) and float in wanted)
