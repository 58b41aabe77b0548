"""The report of `headrace bench engine` as tables for people."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from headrace.cli.benchmarks.engine_bars import OURS, BarResult, EngineResult
from headrace.cli.benchmarks.engine_measures import FIGURES, NUM_COMPARED_TOKENS, Spread
from headrace.cli.benchmarks.engine_report import EngineReport

_GB = 1e9
_BETTER = {True: "more is better", False: "less is better"}
_WORDS = {True: "met", False: "MISSED", None: "not measured"}


def show(report: EngineReport, console: Console) -> None:
    _show_engines(report.engines, console)
    _show_ratios(report.engines, console)
    _show_bars(report.bars, console)
    for note in report.notes:
        console.print(note)
    about = report.machine
    console.print(
        f"\n{about.cpu}, engines on core {report.core} of {about.num_cores}, load before {about.load}, {about.system}; "
        f"{report.model}; {report.num_rounds} rounds{', quick' if report.is_quick else ''}, {report.elapsed_s:.0f} s"
    )


def _show_engines(engines: Sequence[EngineResult], console: Console) -> None:
    units = [f"{figure.title}\n{figure.unit}" for figure in FIGURES.values()]
    table = Table(
        "median\n(lowest, highest)", *units, "start\ns", "peak\nGB", f"ids that match\nof {NUM_COMPARED_TOKENS}"
    )
    table.columns[0].no_wrap = True
    for engine in engines:
        cells = [_spread(engine.figures.get(name)) for name in FIGURES]
        peak = "-" if engine.peak_bytes is None else f"{engine.peak_bytes / _GB:.2f}"
        matching = "-" if engine.num_matching is None else " ".join(map(str, engine.num_matching))
        table.add_row(f"{engine.name}\n{engine.version}", *cells, f"{engine.start_s:.1f}", peak, matching)
    console.print(table)


def _spread(found: Spread | None) -> str:
    if found is None:
        return "-"
    if found.lowest == found.highest:
        return _figure(found.median)
    return f"{_figure(found.median)}\n({_figure(found.lowest)}, {_figure(found.highest)})"


def _show_ratios(engines: Sequence[EngineResult], console: Console) -> None:
    ours = next((engine for engine in engines if engine.name == OURS), None)
    others = [engine for engine in engines if engine.name != OURS]
    if ours is None or not others:
        return
    titles = (f"{figure.title}\n{_BETTER[figure.is_higher_better]}" for figure in FIGURES.values())
    table = Table(f"{OURS} over", *titles)
    for engine in others:
        table.add_row(engine.name, *(_ratio(ours, engine, name) for name in FIGURES))
    console.print(table)


def _ratio(ours: EngineResult, theirs: EngineResult, name: str) -> str:
    if name not in ours.figures or name not in theirs.figures:
        return "-"
    return f"{ours.figures[name].median / theirs.figures[name].median:.2f}"


def _show_bars(bars: Sequence[BarResult], console: Console) -> None:
    table = Table("bar", "limit", "now", "")
    for bar in bars:
        over = f" over {bar.theirs}" if bar.theirs is not None else ""
        title = FIGURES[bar.figure].title if bar.figure in FIGURES else bar.figure
        unit = "" if bar.theirs is not None else {"start": " s", "memory": " GB"}[bar.figure]
        limit = f"{'>=' if bar.is_at_least else '<='} {bar.limit:g}{unit}"
        value = "-" if bar.value is None else f"{bar.value:.3g}{unit}"
        table.add_row(f"{bar.ours}, {title}{over}", limit, value, _WORDS[bar.is_met])
    console.print(table)


def _figure(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"
