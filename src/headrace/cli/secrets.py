"""Settings that hold secrets: read from where they are kept, and never shown."""

import re
import typing
from collections.abc import Mapping
from pathlib import Path

from headrace.units import Secret

MASK = "***"

_REFERENCE = re.compile(r"(?P<before>https?://[^=]*=|)(?P<kind>env|file):(?P<name>.+)", re.DOTALL)
_BEFORE_KEY = re.compile(r"https?://[^=]*=")
_URL_PASSWORD = re.compile(r"(?<=://)([^/@\s:]*):[^/@\s]+(?=@)")
_JSON_KEY = re.compile(r"""(["']api_key["']\s*:\s*)(?:"[^"]*"|'[^']*')""")


def is_secret(field_type: object) -> bool:
    """Whether a setting's type says that its text is a secret, or holds several."""
    return field_type == Secret or any(map(is_secret, typing.get_args(field_type)))


def look_up(value: object, *, environment: Mapping[str, str]) -> object:
    """`value`, the references in it replaced by what they refer to: `env:NAME`, or `file:PATH`, also behind `URL=`.

    Raises ValueError for a name or a file that is not there.
    """
    if isinstance(value, tuple):
        return tuple(look_up(one, environment=environment) for one in value)
    match = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return value
    is_file = match["kind"] == "file"
    return match["before"] + (_from_file(match["name"]) if is_file else _from_environment(match["name"], environment))


def shown(value: object, field_type: object) -> str:
    """How a setting may be printed: secrets, passwords in URLs and keys of endpoints masked."""
    if value is None or not is_secret(field_type):
        return _JSON_KEY.sub(rf'\1"{MASK}"', _URL_PASSWORD.sub(rf"\1:{MASK}", repr(value)))
    if isinstance(value, tuple):
        return repr(tuple(map(_masked, value)))
    return repr(MASK)


def _masked(text: object) -> str:
    """Of `URL=KEY` the URL may be seen."""
    match = _BEFORE_KEY.match(str(text))
    return (match[0] if match is not None else "") + MASK


def _from_environment(name: str, environment: Mapping[str, str]) -> str:
    if name not in environment:
        raise ValueError(f"there is no environment name {name}")
    return environment[name]


def _from_file(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"the file {path} cannot be read: {error}") from error
