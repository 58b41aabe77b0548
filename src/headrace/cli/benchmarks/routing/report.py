"""What `headrace bench routing` prints: JSON, or tables for people."""

from collections.abc import Sequence

import msgspec
from rich.console import Console
from rich.table import Table

from headrace.cli.benchmarks.machine import Machine
from headrace.cli.benchmarks.routing.decision import DecisionRow
from headrace.gateway.routing import PolicyName

OURS: PolicyName = "prefix"
DYNAMO = "dynamo kv_router"
MAX_BELOW_CEILING = 0.02
MAX_DECISION_US = 200.0


class RouterRow(msgspec.Struct, frozen=True, kw_only=True):
    """What one policy, or Dynamo's router, made of a trace."""

    router: str
    hit_ratio: float
    mean_ttft_s: float
    p50_ttft_s: float
    p99_ttft_s: float
    load_spread: float
    reported_hit_ratio: float | None = None
    """Of Dynamo, in its own model of the engines."""


class TraceResult(msgspec.Struct, frozen=True, kw_only=True):
    """One trace."""

    trace: str
    num_requests: int
    ceiling_ratio: float
    rows: list[RouterRow]


class RoutingReport(msgspec.Struct, frozen=True, kw_only=True):
    """One run."""

    benchmark: str = "routing"
    is_quick: bool
    num_endpoints: int
    num_blocks: int
    block_size: int
    num_decision_tokens: int
    machine: Machine
    elapsed_s: float
    traces: list[TraceResult]
    decisions: list[DecisionRow]
    notes: list[str]


def show(report: RoutingReport, console: Console) -> None:
    for one in report.traces:
        console.print(_table(one))
    console.print(_decisions(report.decisions, report))
    for note in report.notes:
        console.print(note, markup=False)
    about = report.machine
    console.print(
        f"\n{report.num_endpoints} simulated endpoints of {report.num_blocks:,} blocks of {report.block_size} tokens; "
        f"{about.cpu}, {about.num_cores} cores, load {about.load}, {about.system}"
        f"{', quick' if report.is_quick else ''}, {report.elapsed_s:.0f} s"
    )


def _table(found: TraceResult) -> Table:
    table = Table(title=f"{found.trace}, {found.num_requests:,} requests", title_justify="left", title_style="")
    table.caption = f"ceiling of this capacity {found.ceiling_ratio:.2%}"
    for at, name in enumerate(("router", "hit", "in its own model", "TTFT mean", "p50", "p99", "spread")):
        table.add_column(name, justify="right" if at else "left")
    for row in found.rows:
        reported = "" if row.reported_hit_ratio is None else f"{row.reported_hit_ratio:.2%}"
        times = (f"{seconds:.3f} s" for seconds in (row.mean_ttft_s, row.p50_ttft_s, row.p99_ttft_s))
        table.add_row(row.router, f"{row.hit_ratio:.2%}", reported, *times, f"{row.load_spread:.3f}")
    return table


def _decisions(rows: Sequence[DecisionRow], report: RoutingReport) -> Table:
    title = f"a decision, us, prompts of {report.num_decision_tokens:,} tokens"
    table = Table(title, *("p50", "p90", "p99", "highest"))
    for row in rows:
        table.add_row(row.prompt, *(f"{us:,.0f}" for us in (row.p50_us, row.p90_us, row.p99_us, row.highest_us)))
    return table
