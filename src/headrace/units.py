"""Durations and sizes with units: `30s`, `5m`, `64KiB`.

A setting declares its unit in its type (`timeout_s: Seconds`); the command line reads the text with it. The functions
here are pure.
"""

import re
from typing import Annotated, TypeAlias

Seconds: TypeAlias = Annotated[float, "duration"]
"""A duration in seconds; a setting of this type is written `250ms`, `30s`, `5m`, `2h` or a bare number of seconds."""

NumBytes: TypeAlias = Annotated[int, "size"]
"""A size in bytes; a setting of this type is written `64KiB`, `10MB`, `1GiB` or a bare number of bytes."""

Secret: TypeAlias = Annotated[str, "secret"]
"""A text that is never shown; a setting of this type may also be `env:NAME` or `file:PATH`, and is then read there."""

_SECONDS_PER_UNIT = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES_PER_UNIT = {
    "b": 1,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "tb": 1000**4,
    "kib": 1024,
    "mib": 1024**2,
    "gib": 1024**3,
    "tib": 1024**4,
}
_NUMBER_AND_UNIT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")


def parse_duration(text: str) -> float:
    """Seconds of `text`, a number with one of us, ms, s, m, h, d; without a unit it counts seconds.

    Raises ValueError, saying what was expected.
    """
    return _parse(text, _SECONDS_PER_UNIT, default_unit="s", expected="a duration such as 250ms, 30s, 5m or 2h")


def parse_size(text: str) -> int:
    """Bytes of `text`, a number with one of B, KB, MB, GB, TB, KiB, MiB, GiB, TiB; without a unit it counts bytes.

    Raises ValueError, saying what was expected.
    """
    value = _parse(text, _BYTES_PER_UNIT, default_unit="b", expected="a size such as 64KiB, 10MB or 1GiB")
    if value != int(value):
        raise ValueError(f"{text!r} is not a whole number of bytes")
    return int(value)


def _parse(text: str, per_unit: dict[str, float] | dict[str, int], *, default_unit: str, expected: str) -> float:
    match = _NUMBER_AND_UNIT.fullmatch(text)
    unit = (match.group(2) or default_unit).lower() if match else ""
    if match is None or unit not in per_unit:
        raise ValueError(f"{text!r} is not {expected}")
    return float(match.group(1)) * per_unit[unit]
