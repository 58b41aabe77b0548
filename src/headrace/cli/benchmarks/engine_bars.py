"""The bars that our engine is to clear beside its peers, and whether it did. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from headrace.cli.benchmarks.engine_measures import Spread

OURS = "headrace"
OURS_INT8 = "headrace int8"
_GB = 1e9


class EngineResult(msgspec.Struct, frozen=True, kw_only=True):
    """One engine's figures."""

    name: str
    version: str
    num_matching: list[int] | None
    """Of the greedy ids, against transformers in float32, for each prompt; None without a reference."""
    start_s: float
    """From the start of the process to the first token."""
    peak_bytes: int | None
    figures: dict[str, Spread]
    """By the names of `FIGURES`; what was not measured is absent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A figure of ours, alone or over the same one of another engine, and its limit."""

    figure: str
    """One of `FIGURES`, `start` or `memory`."""
    limit: float
    is_at_least: bool = True
    ours: str = OURS
    theirs: str | None = None


BARS = (
    Bar(figure="single", theirs="vLLM", limit=1.7),
    Bar(figure="single", theirs="llama.cpp", limit=1.1),
    Bar(figure="streams16", theirs="vLLM", limit=1.2),
    Bar(figure="streams16", theirs="OpenVINO GenAI", limit=1.1),
    Bar(figure="streams64", theirs="vLLM", limit=1.1),
    Bar(figure="cold", theirs="vLLM", limit=0.95, is_at_least=False),
    Bar(figure="hit", theirs="vLLM", limit=0.15, is_at_least=False),
    Bar(figure="single", ours=OURS_INT8, theirs=OURS, limit=1.5),
    Bar(figure="start", limit=4.0, is_at_least=False),
    Bar(figure="memory", limit=1.4, is_at_least=False),
)
"""Start in seconds, memory in GB of 10^9 bytes."""


class BarResult(msgspec.Struct, frozen=True, kw_only=True):
    """Where one bar stands."""

    figure: str
    ours: str
    theirs: str | None
    limit: float
    is_at_least: bool
    value: float | None
    """A ratio of medians, or ours alone; None when an engine or its figure is missing."""
    is_met: bool | None


def check(bars: Sequence[Bar], engines: Sequence[EngineResult]) -> list[BarResult]:
    by_name = {engine.name: engine for engine in engines}
    return [_check_one(bar, by_name) for bar in bars]


def _check_one(bar: Bar, engines: Mapping[str, EngineResult]) -> BarResult:
    value = _value(engines.get(bar.ours), bar.figure)
    if bar.theirs is not None:
        theirs = _value(engines.get(bar.theirs), bar.figure)
        value = value / theirs if value is not None and theirs is not None else None
    is_met = None if value is None else value >= bar.limit if bar.is_at_least else value <= bar.limit
    return BarResult(
        figure=bar.figure,
        ours=bar.ours,
        theirs=bar.theirs,
        limit=bar.limit,
        is_at_least=bar.is_at_least,
        value=value,
        is_met=is_met,
    )


def _value(engine: EngineResult | None, figure: str) -> float | None:
    if engine is None:
        return None
    if figure == "start":
        return engine.start_s
    if figure == "memory":
        return engine.peak_bytes / _GB if engine.peak_bytes is not None else None
    found = engine.figures.get(figure)
    return found.median if found is not None else None
