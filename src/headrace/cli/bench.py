"""`headrace bench tokenization` and `headrace bench loop`: measures, shows progress, and prints tables or JSON."""

import argparse
import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from headrace.cli.benchmarks import machine
from headrace.cli.benchmarks.callers import caller_groups
from headrace.cli.benchmarks.encoding import MODEL, Encoders, encoding_groups, hostile_units
from headrace.cli.benchmarks.loop import LagRow, WaitRow, measure_lag, measure_short_prompts, scenarios
from headrace.cli.benchmarks.rounds import Row, measure
from headrace.errors import SettingsError
from headrace.tokenization.service import TokenizationService
from headrace.tokenization.settings import TokenizationSettings

_MAX_QUEUED_BYTES = 512 * 1024 * 1024
"""The benchmarks measure time, not refusals: fifty long prompts at once are more than the default lets wait."""
_SETTINGS = TokenizationSettings(max_queued_bytes=_MAX_QUEUED_BYTES)


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` prints."""

    benchmark: str
    tokenizer: str
    is_quick: bool
    num_rounds: int
    machine: machine.Machine
    rows: list[Row] | None = None
    lag: list[LagRow] | None = None
    short_prompts: list[WaitRow] | None = None


def run(argv: Sequence[str]) -> int:
    """Measure and print; the exit status."""
    arguments = _parser().parse_args(argv)
    if arguments.rounds is not None and arguments.rounds < 1:
        raise SettingsError(f"--rounds is {arguments.rounds}; it must be 1 or more", param="rounds")
    console = Console(stderr=True, highlight=False)
    report = uvloop.run(_BENCHMARKS[arguments.benchmark](arguments, console))
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        _show(report, Console(highlight=False))
    return 0


async def _bench_tokenization(arguments: argparse.Namespace, console: Console) -> Report:
    num_rounds = arguments.rounds or (2 if arguments.quick else 7)
    found = machine.describe()
    rows: list[Row] = []
    async with TokenizationService(_SETTINGS) as service:
        encoders = await _encoders(arguments, service)
        groups = [
            group
            for make in (encoding_groups, caller_groups)
            for group in make(encoders, is_quick=arguments.quick)
            if arguments.only is None or arguments.only in group.title
        ]
        with _progress(console, total=len(groups) * (num_rounds + 1)) as (say, step):
            for group in groups:
                say(group.title)
                rows += await measure(group, num_rounds=num_rounds, on_round=step)
    return _report(arguments, found, num_rounds, rows=rows)


async def _bench_loop(arguments: argparse.Namespace, console: Console) -> Report:
    num_rounds = arguments.rounds or (1 if arguments.quick else 3)
    found = machine.describe()
    async with TokenizationService(_SETTINGS) as service:
        encoders = await _encoders(arguments, service)
        num_steps = (len(scenarios(encoders)) + 1 + len(hostile_units(encoders))) * num_rounds
        with _progress(console, total=num_steps) as (say, step):
            say("lag while clients send long prompts")
            lag = await measure_lag(
                encoders,
                num_clients=8 if arguments.quick else 50,
                num_tokens=10_000 if arguments.quick else 100_000,
                num_rounds=num_rounds,
                on_round=step,
            )
            say("short prompts beside a hostile text")
            short_prompts = await measure_short_prompts(
                encoders,
                num_hostile_chars=100_000 if arguments.quick else 1_000_000,
                num_rounds=num_rounds,
                on_round=step,
            )
    return _report(arguments, found, num_rounds, lag=lag, short_prompts=short_prompts)


_BENCHMARKS: dict[str, Callable[[argparse.Namespace, Console], Coroutine[Any, Any, Report]]] = {
    "tokenization": _bench_tokenization,
    "loop": _bench_loop,
}


async def _encoders(arguments: argparse.Namespace, service: TokenizationService) -> Encoders:
    path = Path(arguments.tokenizer)
    tokenizer = await service.load(MODEL, path)
    await service.wait_admitted(MODEL)  # else the first rounds would measure the encoder before it was admitted
    return await asyncio.to_thread(Encoders.load, path, tokenizer=tokenizer, service=service)


def _report(arguments: argparse.Namespace, found: machine.Machine, num_rounds: int, **results: Any) -> Report:
    return Report(
        benchmark=arguments.benchmark,
        tokenizer=arguments.tokenizer,
        is_quick=arguments.quick,
        num_rounds=num_rounds,
        machine=found,
        **results,
    )


@contextmanager
def _progress(console: Console, *, total: int) -> Iterator[tuple[Callable[[str], None], Callable[[], None]]]:
    """How to say what is measured now, and that one of `total` steps is done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, auto_refresh=False) as progress:  # its thread would disturb the loop
        task = progress.add_task("loading", total=total)

        def say(what: str) -> None:
            progress.update(task, description=what, refresh=True)

        def step() -> None:
            progress.update(task, advance=1, refresh=True)

        yield say, step


def _show(report: Report, console: Console) -> None:
    if report.rows:
        _show_rows(report.rows, console)
    if report.lag:
        _show_lag(report.lag, console)
    if report.short_prompts:
        _show_waits(report.short_prompts, console)
    about = report.machine
    packages = ", ".join(f"{name} {version}" for name, version in about.packages.items())
    console.print(f"\n{about.cpu}, {about.num_cores} cores, load {about.load}, {about.system}, Python {about.python}")
    console.print(f"{packages}; {report.tokenizer}; {report.num_rounds} rounds{', quick' if report.is_quick else ''}")


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


def _show_lag(rows: Sequence[LagRow], console: Console) -> None:
    table = Table("lag of the loop, ms", "p50", "p99.9", "max", "worst round", "prompts/s")
    table.columns[0].no_wrap = True
    for row in rows:
        numbers = (row.p50_ms, row.p99_9_ms, row.max_ms, row.worst_ms, row.prompts_per_s)
        table.add_row(row.scenario, *map(_figure, numbers))
    console.print(table)


def _show_waits(rows: Sequence[WaitRow], console: Console) -> None:
    table = Table("short prompts through the service, ms", "p50", "p99", "prompts")
    for row in rows:
        table.add_row(row.scenario, _figure(row.p50_ms), _figure(row.p99_ms), str(row.num_prompts))
    console.print(table)


def _figure(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="headrace bench", description=__doc__)
    parser.add_argument("benchmark", choices=_BENCHMARKS, help="what to measure")
    parser.add_argument(
        "--tokenizer",
        default="models/demo",
        metavar="PATH",
        help="a model's directory, or a tokenizer.json (default: %(default)s)",
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="measured rounds (default: 7, the loop 3)")
    parser.add_argument("--only", metavar="TEXT", help="of tokenization, only groups whose title has TEXT in it")
    parser.add_argument("--quick", action="store_true", help="small inputs and few rounds: to see that it works")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    return parser
