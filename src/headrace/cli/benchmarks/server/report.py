"""What `headrace bench server` prints: JSON, or a table for people."""

import msgspec
from rich.console import Console
from rich.table import Table

from headrace.cli.benchmarks.engine_measures import Spread
from headrace.cli.benchmarks.machine import Machine

TITLES = {
    "rate": ("chats of 2 KiB, 16 tokens each", "requests/s"),
    "events": ("events of streams, steps of 5 ms", "events/s"),
    "tokens": ("their tokens", "tokens/s"),
    "direct_p50": ("one chat alone, the engine itself, p50", "ms"),
    "http_p50": ("one chat alone, through HTTP, p50", "ms"),
    "added_p50": ("added by the server, p50", "ms"),
}
"""Of the figures: their titles and units."""


class ServerReport(msgspec.Struct, frozen=True, kw_only=True):
    """One run."""

    benchmark: str = "server"
    model: str
    is_quick: bool
    num_rounds: int
    num_streams: int
    server_core: int
    load_core: int
    machine: Machine
    elapsed_s: float
    figures: dict[str, Spread]
    """By the names of `TITLES`."""


def show(report: ServerReport, console: Console) -> None:
    table = Table("a server over an engine that computes nothing", "median", "from", "to", "")
    for name, (title, unit) in TITLES.items():
        one = report.figures[name]
        digits = ",.0f" if unit.endswith("/s") else ".3f"
        table.add_row(title, *(f"{value:{digits}}" for value in (one.median, one.lowest, one.highest)), unit)
    console.print(table)
    about = report.machine
    console.print(
        f"{about.cpu}, front end and core on core {report.server_core}, load on core {report.load_core} of "
        f"{about.num_cores}, load before {about.load}, {about.system}; {report.model}; {report.num_streams} streams; "
        f"{report.num_rounds} rounds{', quick' if report.is_quick else ''}, {report.elapsed_s:.0f} s"
    )
