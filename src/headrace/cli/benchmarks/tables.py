"""A report as tables for people."""

from collections.abc import Sequence
from itertools import groupby

from rich.console import Console
from rich.table import Table

from headrace.cli.benchmarks.chats import ChatReport, Ratios
from headrace.cli.benchmarks.loop import LagRow
from headrace.cli.benchmarks.memory import MemoryReport
from headrace.cli.benchmarks.report import Report
from headrace.cli.benchmarks.rounds import Row
from headrace.cli.benchmarks.worst_cases import WorstCaseRow


def show(report: Report, console: Console) -> None:
    if report.rows:
        _show_rows(report.rows, console)
    if report.chats:
        _show_chats(report.chats, console)
    if report.memory:
        _show_memory(report.memory, console)
    if report.worst_cases:
        _show_worst_cases(report.worst_cases, console)
    if report.lag:
        _show_lag(report.lag, console)
    for note in report.notes:
        console.print(note, markup=False)
    about = report.machine
    packages = ", ".join(f"{name} {version}" for name, version in about.packages.items())
    console.print(f"\n{about.cpu}, {about.num_cores} cores, load {about.load}, {about.system}, Python {about.python}")
    console.print(
        f"{packages}; {report.tokenizer}; {report.num_rounds} rounds{', quick' if report.is_quick else ''}, "
        f"{report.elapsed_s:.0f} s"
    )


def _show_rows(rows: Sequence[Row], console: Console) -> None:
    table = Table("", "median", "from", "to", "", "times faster")
    table.columns[0].no_wrap = True
    for title, of_group in groupby(rows, key=lambda row: row.group):
        table.add_section()
        table.add_row(f"[bold]{title}")
        for row in of_group:
            numbers = (_figure(value) for value in (row.median, row.lowest, row.highest))
            table.add_row(f"  {row.way}", *numbers, row.unit, _figure(row.times_faster))
    console.print(table)


def _show_chats(report: ChatReport, console: Console) -> None:
    table = Table(
        f"turn {report.num_turns} of a chat, ms",
        "tokens",
        "tokenizers",
        "fastokens",
        "service",
        "times",
        "times fastokens",
    )
    table.columns[0].no_wrap = True
    for row in report.families:
        fastokens = ("-", "-")
        if row.fastokens_ms is not None:
            fastokens = (_figure(row.fastokens_ms), _figure(row.fastokens_ms / row.service_ms))
        of_library = _figure(row.tokenizers_ms / row.service_ms)
        numbers = (_figure(row.tokenizers_ms), fastokens[0], _figure(row.service_ms), of_library, fastokens[1])
        table.add_row(row.family, str(row.num_tokens), *numbers)
    console.print(table)
    _show_ratios("tokenizers", report.against_tokenizers, console)
    if report.against_fastokens is not None:
        _show_ratios("fastokens", report.against_fastokens, console)


def _show_ratios(name: str, ratios: Ratios, console: Console) -> None:
    console.print(
        f"times faster than {name} with the whole: worst {_figure(ratios.worst)} ({ratios.worst_family}), "
        f"median {_figure(ratios.median)}"
    )


def _show_memory(report: MemoryReport, console: Console) -> None:
    table = Table("memory, MiB", "budget", "grown by", "of budget", "accounted", "entries", "prompts/s")
    table.add_row(
        f"{report.num_prompts:,} distinct prompts",
        *map(_figure, (report.budget_mib, report.grown_mib)),
        f"{report.share_of_budget:.0%}",
        _figure(report.accounted_mib),
        *map(_figure, (report.num_entries, report.prompts_per_s)),
    )
    console.print(table)


def _show_worst_cases(rows: Sequence[WorstCaseRow], console: Console) -> None:
    table = Table("worst cases, ms", "tokenizers", "service", "short p50", "short p99", "lag p99.9", "lag max")
    table.columns[0].no_wrap = True
    for row in rows:
        alone, beside = row.alone, row.beside
        table.add_row(
            f"{row.num_chars / 1e6:g} MB of {row.case}",
            _figure(row.tokenizers_ms),
            _figure(row.service_ms),
            f"{_figure(alone.p50_ms)} -> {_figure(beside.p50_ms)} ({row.p50_ratio:.2g}x)",
            f"{_figure(alone.p99_ms)} -> {_figure(beside.p99_ms)} ({row.p99_ratio:.2g}x)",
            f"{_figure(alone.lag_p99_9_ms)} -> {_figure(beside.lag_p99_9_ms)}",
            f"{_figure(alone.lag_max_ms)} -> {_figure(beside.lag_max_ms)}",
        )
    console.print(table)
    console.print("short prompts and lag: without such a text -> while it is encoded")


def _show_lag(rows: Sequence[LagRow], console: Console) -> None:
    table = Table("lag of the loop, ms", "p50", "p99.9", "above idle", "max", "above idle", "worst round", "prompts/s")
    table.columns[0].no_wrap = True
    for row in rows:
        lags = (row.p50_ms, row.p99_9_ms, row.p99_9_above_idle_ms, row.max_ms, row.max_above_idle_ms, row.worst_ms)
        table.add_row(row.scenario, *map(_figure, lags), _figure(row.prompts_per_s))
    console.print(table)


def _figure(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
