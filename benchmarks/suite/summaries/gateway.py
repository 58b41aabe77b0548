"""Of `headrace bench gateway`."""

import msgspec

from benchmarks.suite.record import Bar, Figure
from benchmarks.suite.summary import Summary, slug, values_of
from headrace.cli.benchmarks.gateway.contenders import OURS
from headrace.cli.benchmarks.gateway.figures import PARTS, BarResult
from headrace.cli.benchmarks.gateway.report import GatewayReport

_NO_RESULTS = {("latency", "rate"), ("memory", "prompts")}
"""Columns that say what was asked for."""


def summarize(output: bytes) -> Summary:
    report = msgspec.json.decode(output, type=GatewayReport)
    figures = []
    for part, name, title, unit in _columns():
        rows = [row for row in report.rows if row.part == part and name in row.figures]
        if rows:
            spreads = {row.contender: row.figures[name] for row in rows}
            figures.append(
                Figure(
                    key=slug(f"{part} {name}"),
                    title=title,
                    unit=unit,
                    is_higher_better=unit.endswith("/s"),
                    values=values_of(spreads, ours=(OURS,)),
                )
            )
    failed = [f"{row.contender}, {row.part}: {row.error}" for row in report.rows if row.error is not None]
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    return Summary(
        about=f"one core, {report.num_rounds} rounds; {versions}",
        notes=[*report.notes, *failed],
        figures=figures,
        bars=[_bar(bar) for bar in report.bars],
    )


def _columns() -> list[tuple[str, str, str, str]]:
    """Part, name, title and unit."""
    return [
        (part, name, f"{part}: {figure.title}", figure.unit)
        for part, figures in PARTS.items()
        for name, figure in figures.items()
        if (part, name) not in _NO_RESULTS
    ]


def _bar(bar: BarResult) -> Bar:
    figure = PARTS[bar.part][bar.figure]
    over = f" over {bar.over}" if bar.over else ""
    return Bar(
        title=f"{bar.part}: {figure.title}{over}",
        limit=bar.limit,
        is_at_least=bar.is_at_least,
        unit="x" if bar.over else figure.unit,
        value=bar.value,
    )
