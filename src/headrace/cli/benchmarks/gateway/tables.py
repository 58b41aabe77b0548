"""The report of `headrace bench gateway` as tables for people."""

from rich.console import Console
from rich.table import Table

from headrace.cli.benchmarks.engine_measures import Spread
from headrace.cli.benchmarks.gateway.contenders import OURS
from headrace.cli.benchmarks.gateway.figures import PARTS, BarResult, Figure
from headrace.cli.benchmarks.gateway.report import GatewayReport

_WORDS = {True: "met", False: "MISSED", None: "not measured"}


def show(report: GatewayReport, console: Console) -> None:
    for part in PARTS:
        _show_part(report, part, console)
    _show_bars(report, console)
    for note in report.notes:
        console.print(note, markup=False)
    about = report.machine
    console.print(
        f"\n{about.cpu}, gateways on core {report.gateway_core}, load and endpoints on core {report.load_core} of "
        f"{about.num_cores}, load before {about.load}, {about.system}; tokenizer {report.tokenizer}; "
        f"{report.num_rounds} rounds{', quick' if report.is_quick else ''}, {report.elapsed_s:.0f} s"
    )


def _show_part(report: GatewayReport, part: str, console: Console) -> None:
    rows = [row for row in report.rows if row.part == part]
    if not rows:
        return
    figures = PARTS[part]
    table = Table(f"{part}\nmedian (lowest, highest)", *(f"{one.title}\n{one.unit}" for one in figures.values()))
    for row in rows:
        cells = [_spread(row.figures.get(name), figure) for name, figure in figures.items()]
        table.add_row(f"{row.contender} {report.versions[row.contender]}", *cells)
    console.print(table)
    for row in rows:
        if row.error is not None:
            console.print(f"{row.contender}: {row.error}", markup=False)


def _show_bars(report: GatewayReport, console: Console) -> None:
    table = Table("bar", "limit", "now", "")
    for bar in report.bars:
        figure = PARTS[bar.part][bar.figure]
        over = f" over {bar.over}" if bar.over else ""
        limit = f"{'>=' if bar.is_at_least else '<='} {bar.limit:g}{_unit(bar, figure)}"
        value = "-" if bar.value is None else f"{bar.value:.3g}{_unit(bar, figure)}"
        table.add_row(f"{OURS}, {bar.part}: {figure.title}{over}", limit, value, _WORDS[bar.is_met])
    console.print(table)


def _unit(bar: BarResult, figure: Figure) -> str:
    return " x" if bar.over else f" {figure.unit}"


def _spread(found: Spread | None, figure: Figure) -> str:
    if found is None:
        return "-"
    digits = f",.{figure.num_decimals}f"
    if found.lowest == found.highest:
        return format(found.median, digits)
    return f"{found.median:{digits}} ({found.lowest:{digits}}, {found.highest:{digits}})"
