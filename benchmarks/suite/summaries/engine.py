"""Of `headrace bench engine` and `headrace bench front`."""

import msgspec

from benchmarks.suite.record import Bar, Figure, Value
from benchmarks.suite.summary import Summary, values_of
from headrace.cli.benchmarks.engine_bars import OURS, BarResult, EngineResult
from headrace.cli.benchmarks.engine_measures import FIGURES
from headrace.cli.benchmarks.engine_report import EngineReport
from headrace.cli.benchmarks.front import BAR_TOKENS_PER_S, FrontReport

_UNITS = {"start": "s", "memory": "GB"}
_GB = 1e9


def summarize(output: bytes) -> Summary:
    report = msgspec.json.decode(output, type=EngineReport)
    engines = sorted(report.engines, key=lambda engine: engine.name != OURS)
    figures = [
        Figure(
            key=key,
            title=figure.title,
            unit=figure.unit,
            is_higher_better=figure.is_higher_better,
            values=values_of({engine.name: engine.figures.get(key) for engine in engines}, ours=(OURS,)),
        )
        for key, figure in FIGURES.items()
    ]
    figures = [*filter(lambda figure: figure.values, figures), *_single_values(engines)]
    versions = ", ".join(f"{engine.name} {engine.version.removeprefix(f'{OURS} ')}" for engine in engines)
    about = f"{report.model.rpartition('/')[2]} on one core, {report.num_rounds} rounds; {versions}"
    return Summary(about=about, notes=report.notes, figures=figures, bars=[_bar(bar) for bar in report.bars])


def _single_values(engines: list[EngineResult]) -> list[Figure]:
    starts = [Value(name=one.name, median=one.start_s, is_ours=one.name.startswith(OURS)) for one in engines]
    peaks = [
        Value(name=one.name, median=one.peak_bytes / _GB, is_ours=one.name.startswith(OURS))
        for one in engines
        if one.peak_bytes is not None
    ]
    return [
        Figure(key="start", title="start to first token", unit="s", is_higher_better=False, values=starts),
        Figure(key="memory", title="peak of memory", unit="GB", is_higher_better=False, values=peaks),
    ]


def _bar(bar: BarResult) -> Bar:
    title = FIGURES[bar.figure].title if bar.figure in FIGURES else bar.figure
    over = f" over {bar.theirs}" if bar.theirs is not None else ""
    return Bar(
        title=f"{bar.ours}, {title}{over}",
        limit=bar.limit,
        is_at_least=bar.is_at_least,
        unit="x" if bar.theirs is not None else _UNITS[bar.figure],
        value=bar.value,
    )


def summarize_front(output: bytes) -> Summary:
    """Ways are of ours alone; the first is what bars are about."""
    report = msgspec.json.decode(output, type=FrontReport)
    figures = [
        Figure(
            key=f"way-{number}",
            title=way.way,
            unit="tokens/s",
            is_higher_better=True,
            values=values_of({OURS: way.tokens_per_s}, ours=(OURS,)),
        )
        for number, way in enumerate(report.ways, start=1)
    ]
    bars = [
        Bar(
            title=f"{way.way}, {report.num_streams} streams",
            limit=BAR_TOKENS_PER_S,
            is_at_least=True,
            unit="tokens/s",
            value=way.tokens_per_s.median,
        )
        for way in report.ways
        if way.is_met is not None
    ]
    about = f"{report.num_streams} streams of {report.num_tokens} tokens, {report.num_rounds} rounds, one core"
    return Summary(about=about, figures=figures, bars=bars)
