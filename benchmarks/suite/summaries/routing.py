"""Of `headrace bench routing`, with the bars that it is to clear."""

from collections.abc import Iterator

import msgspec

from benchmarks.suite.record import Bar, Figure, Value
from benchmarks.suite.summary import Summary, slug
from headrace.cli.benchmarks.routing.decision import DecisionRow
from headrace.cli.benchmarks.routing.report import (
    DYNAMO,
    MAX_BELOW_CEILING,
    MAX_DECISION_US,
    OURS,
    RoutingReport,
    TraceResult,
)

_NOT_DECIDED = "hash only"


def summarize(output: bytes) -> Summary:
    report = msgspec.json.decode(output, type=RoutingReport)
    figures = [figure for trace in report.traces for figure in _figures(trace)]
    bars = [bar for trace in report.traces for bar in _bars(trace)]
    decided = [row for row in report.decisions if row.prompt != _NOT_DECIDED]
    about = f"{report.num_endpoints} simulated endpoints of {report.num_blocks:,} blocks of {report.block_size} tokens"
    return Summary(
        about=about,
        notes=report.notes,
        figures=[*figures, *(_decision(row, report) for row in decided)],
        bars=[*bars, *(_decision_bar(row) for row in decided)],
    )


def _figures(trace: TraceResult) -> Iterator[Figure]:
    columns = (
        ("hit rate", "%", True, [row.hit_ratio * 100 for row in trace.rows]),
        ("simulated TTFT, mean", "s", False, [row.mean_ttft_s for row in trace.rows]),
        ("simulated TTFT, p99", "s", False, [row.p99_ttft_s for row in trace.rows]),
    )
    for title, unit, is_higher_better, numbers in columns:
        values = [
            Value(name=row.router, median=number, is_ours=row.router == OURS)
            for row, number in zip(trace.rows, numbers, strict=True)
        ]
        yield Figure(
            key=slug(f"{_name(trace)} {title}"),
            title=f"{_name(trace)}: {title}",
            unit=unit,
            is_higher_better=is_higher_better,
            values=values,
        )


def _bars(trace: TraceResult) -> Iterator[Bar]:
    rows = {row.router: row for row in trace.rows}
    ours, dynamo, name = rows[OURS], rows.get(DYNAMO), _name(trace)
    yield Bar(
        title=f"{name}: hit rate below the ceiling",
        limit=MAX_BELOW_CEILING * 100,
        is_at_least=False,
        unit="points",
        value=(trace.ceiling_ratio - ours.hit_ratio) * 100,
    )
    if dynamo is None:
        return
    best_hit = max(dynamo.hit_ratio, dynamo.reported_hit_ratio or 0.0)
    hit, ttft = ours.hit_ratio / best_hit, ours.mean_ttft_s / dynamo.mean_ttft_s
    yield Bar(title=f"{name}: hit rate over Dynamo's", limit=1.0, is_at_least=True, unit="x", value=hit)
    yield Bar(title=f"{name}: mean TTFT over Dynamo's", limit=1.0, is_at_least=False, unit="x", value=ttft)


def _name(trace: TraceResult) -> str:
    return trace.trace.removesuffix(".jsonl").replace("_", " ")


def _decision(row: DecisionRow, report: RoutingReport) -> Figure:
    title = f"decision at {report.num_decision_tokens // 1024}k tokens, {row.prompt}"
    values = [Value(name="headrace", median=row.p50_us, highest=row.p99_us, is_ours=True)]
    return Figure(key=slug(title), title=f"{title}: p50 (to p99)", unit="us", is_higher_better=False, values=values)


def _decision_bar(row: DecisionRow) -> Bar:
    title = f"decision, {row.prompt}, p99"
    return Bar(title=title, limit=MAX_DECISION_US, is_at_least=False, unit="us", value=row.p99_us)
