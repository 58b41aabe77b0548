"""What a benchmark's own report comes down to, before it is known when and how it was run."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.suite.record import Bar, Figure, Value
from headrace.cli.benchmarks.engine_measures import Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """See `record.Benchmark`."""

    about: str = ""
    notes: list[str] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)


def slug(title: str) -> str:
    """A name for a file."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def values_of(spreads: Mapping[str, Spread | None], *, ours: tuple[str, ...]) -> list[Value]:
    """Of contenders by name; those without a figure are left out."""
    return [
        Value(name=name, median=one.median, lowest=one.lowest, highest=one.highest, is_ours=name.startswith(ours))
        for name, one in spreads.items()
        if one is not None
    ]
