"""What is measured, part by part, and the bars that ours is to clear. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from headrace.cli.benchmarks.engine_measures import Spread
from headrace.cli.benchmarks.gateway.contenders import OURS

RUST = ("smg", "sglang-router", "vllm-router")
TOKEN_ROUTERS = ("dynamo",)
"""Peers that look at tokens to route, as ours does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One column of a part's table."""

    title: str
    unit: str
    num_decimals: int = 2


PARTS: dict[str, dict[str, Figure]] = {
    "small": {
        "rate": Figure(title="2 KiB prompts, all new", unit="requests/s", num_decimals=0),
        "cpu": Figure(title="processor time", unit="us/request", num_decimals=0),
        "p50": Figure(title="p50", unit="ms"),
        "p99": Figure(title="p99", unit="ms"),
    },
    "large": {
        "rate": Figure(title="60 KB bodies, all new", unit="requests/s", num_decimals=0),
        "rate_known": Figure(title="60 KB bodies, chats that go on", unit="requests/s", num_decimals=0),
        "cpu": Figure(title="processor time, new", unit="us/request", num_decimals=0),
        "cpu_known": Figure(title="known", unit="us/request", num_decimals=0),
    },
    "latency": {
        "rate": Figure(title="2 KiB prompts at half load", unit="requests/s", num_decimals=0),
        "added_p50": Figure(title="added p50", unit="ms", num_decimals=3),
        "added_p99": Figure(title="added p99", unit="ms", num_decimals=3),
    },
    "chats": {
        "rate": Figure(title="turns of chats of 60k tokens", unit="requests/s", num_decimals=0),
        "added_p50": Figure(title="added p50, history known", unit="ms", num_decimals=3),
        "p50": Figure(title="p50 under load", unit="ms"),
    },
    "streams": {
        "cores": Figure(title="1,000 streams of 50 tokens/s", unit="cores", num_decimals=3),
        "added_p50": Figure(title="added to an event, p50", unit="ms"),
        "added_gap_p99": Figure(title="added between tokens, p99", unit="ms"),
    },
    "start": {
        "ready": Figure(title="start to ready", unit="s"),
        "idle": Figure(title="resident, idle", unit="MB", num_decimals=0),
    },
    "memory": {
        "resident": Figure(title="resident after the prompts", unit="MB", num_decimals=0),
        "prompts": Figure(title="distinct prompts of 4k tokens", unit="", num_decimals=0),
    },
}

Samples = Mapping[str, float]
"""One round of a part: a value for each of its figures."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What one contender did in one part."""

    part: str
    contender: str
    figures: dict[str, Spread]
    error: str | None = None
    """Why it was not measured, or no further."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A figure of ours, alone or over the best of some peers, and its limit."""

    part: str
    figure: str
    limit: float
    is_at_least: bool = False
    over: Sequence[str] = ()


BARS = (
    Bar(part="small", figure="rate", over=RUST, limit=1.5, is_at_least=True),
    Bar(part="small", figure="rate", over=("litellm",), limit=10.0, is_at_least=True),
    Bar(part="large", figure="rate", over=RUST, limit=2.0, is_at_least=True),
    Bar(part="large", figure="rate_known", over=RUST, limit=2.0, is_at_least=True),
    Bar(part="latency", figure="added_p50", limit=0.5),
    Bar(part="latency", figure="added_p99", limit=3.0),
    Bar(part="chats", figure="rate", over=TOKEN_ROUTERS, limit=3.0, is_at_least=True),
    Bar(part="chats", figure="added_p50", limit=2.0),
    Bar(part="streams", figure="cores", limit=0.4),
    Bar(part="streams", figure="added_gap_p99", limit=5.0),
    Bar(part="start", figure="ready", limit=1.0),
    Bar(part="start", figure="idle", limit=90.0),
    Bar(part="memory", figure="resident", limit=400.0),
)


class BarResult(msgspec.Struct, frozen=True, kw_only=True):
    """Where one bar stands."""

    part: str
    figure: str
    over: str | None
    """The best of those that it is measured over."""
    limit: float
    is_at_least: bool
    value: float | None
    """Ours, or its ratio to the best; None where something is missing."""
    is_met: bool | None


def check(bars: Sequence[Bar], rows: Sequence[Row]) -> list[BarResult]:
    """Bars of parts that were not measured are left out."""
    medians = {(row.part, row.contender, name): one.median for row in rows for name, one in row.figures.items()}
    measured = {row.part for row in rows}
    return [_check_one(bar, medians) for bar in bars if bar.part in measured]


def _check_one(bar: Bar, medians: Mapping[tuple[str, str, str], float]) -> BarResult:
    value = medians.get((bar.part, OURS, bar.figure))
    best: str | None = None
    if bar.over:
        rates = {name: rate for name in bar.over if (rate := medians.get((bar.part, name, bar.figure))) is not None}
        best = max(rates, key=lambda name: rates[name], default=None)
        value = value / rates[best] if value is not None and best is not None else None
    is_met = None if value is None else value >= bar.limit if bar.is_at_least else value <= bar.limit
    return BarResult(
        part=bar.part,
        figure=bar.figure,
        over=best or (" or ".join(bar.over) if bar.over else None),
        limit=bar.limit,
        is_at_least=bar.is_at_least,
        value=value,
        is_met=is_met,
    )
