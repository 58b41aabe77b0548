"""Of `headrace bench server`, `benchmarks/start.py` and `benchmarks/health_under_load.py`: ours alone."""

import msgspec

from benchmarks.suite.record import Bar, Figure, Value
from benchmarks.suite.summary import Summary, slug, values_of
from headrace.cli.benchmarks.engine_measures import Spread
from headrace.cli.benchmarks.server.report import TITLES, ServerReport

_OURS = "headrace"


class _Latencies(msgspec.Struct):
    median_ms: float
    p99_ms: float
    max_ms: float


class _Health(msgspec.Struct):
    route: str
    num_prompts: int
    num_words: int
    num_answered: int
    sent_in_s: float
    idle: _Latencies
    loaded: _Latencies
    machine: _Latencies


def summarize(output: bytes) -> Summary:
    report = msgspec.json.decode(output, type=ServerReport)
    figures = [
        Figure(
            key=slug(name),
            title=TITLES[name][0],
            unit=TITLES[name][1],
            is_higher_better=TITLES[name][1].endswith("/s"),
            values=values_of({_OURS: one}, ours=(_OURS,)),
        )
        for name, one in report.figures.items()
    ]
    about = f"{report.model}, one core, {report.num_streams} streams, {report.num_rounds} rounds"
    return Summary(about=about, figures=figures)


def summarize_start(output: bytes) -> Summary:
    found = msgspec.json.decode(output, type=dict[str, Spread])
    figures = [
        Figure(
            key=slug(title),
            title=title,
            unit="s",
            is_higher_better=False,
            values=values_of({_OURS: one}, ours=(_OURS,)),
        )
        for title, one in found.items()
    ]
    return Summary(about="file caches warm", figures=figures)


def summarize_health(output: bytes) -> Summary:
    report = msgspec.json.decode(output, type=_Health)
    rows = (
        ("idle", report.idle),
        ("under the load", report.loaded),
        ("what the machine itself is late", report.machine),
    )
    figures = [
        Figure(
            key=slug(f"{title} {name}"),
            title=f"/health {title}, {name}" if each is not report.machine else f"{title}, {name}",
            unit="ms",
            is_higher_better=False,
            values=[Value(name=_OURS, median=value, is_ours=True)],
        )
        for title, each in rows
        for name, value in (("median", each.median_ms), ("p99", each.p99_ms), ("max", each.max_ms))
    ]
    about = f"{report.num_prompts} prompts of {report.num_words:,} words at once, tokenized in {report.sent_in_s:g} s"
    answered = Bar(
        title="prompts answered as they should be",
        limit=report.num_prompts,
        is_at_least=True,
        unit="prompts",
        value=report.num_answered,
    )
    return Summary(about=about, figures=figures, bars=[answered])
