"""Of `headrace bench tokenization` and `headrace bench loop`, with the bars that they are to clear."""

from collections.abc import Iterator, Sequence
from itertools import groupby

import msgspec

from benchmarks.suite.record import Bar, Figure, Value
from benchmarks.suite.summary import Summary, slug
from headrace.cli.benchmarks.chats import ChatReport
from headrace.cli.benchmarks.loop import LagRow
from headrace.cli.benchmarks.report import Report
from headrace.cli.benchmarks.rounds import Row
from headrace.cli.benchmarks.worst_cases import WorstCaseRow

_LIBRARY, _SERVICE = "tokenizers.encode", "headrace service"
_OURS = (_SERVICE, "headrace incremental", "AsyncMicrobatchTokenizer")
_MAX_LAG_MS, _MAX_LAG_P99_9_MS, _MAX_SHORT_P99_MS = 10.0, 5.0, 5.0
_MAX_BESIDE = 2.0

_RATIOS = (
    ("fresh text, 4k tokens", _LIBRARY, 8.0),
    ("fresh text, 128k tokens", _LIBRARY, 25.0),
    ("512k-character document", _LIBRARY, 150.0),
    ("prompts of 8 tokens, 256 callers", "executor call per prompt", 4.0),
    ("prompts of 512 tokens, 256 callers", "executor call per prompt", 1.5),
    ("prompts of 8 tokens, 1 caller", "executor call per prompt", 1.0),
)
"""Beginning of a title, what ours is compared with, and how many times faster it is to be."""


def summarize(output: bytes) -> Summary:
    report = msgspec.json.decode(output, type=Report)
    rows = report.rows or []
    figures = [_figure(title, list(group)) for title, group in groupby(rows, key=lambda row: row.group)]
    bars = [*_ratio_bars(rows), *_time_bars(rows)]
    if report.chats is not None:
        figures += [_turns(report.chats)]
        bars += _chat_bars(report.chats)
    if report.worst_cases is not None:
        figures += [_worst_case(row) for row in report.worst_cases]
        bars += [bar for row in report.worst_cases for bar in _worst_case_bars(row)]
    if report.memory is not None:
        title = f"cache after {report.memory.num_prompts:,} prompts, of its budget"
        bars.append(Bar(title=title, limit=1.1, is_at_least=False, unit="x", value=report.memory.share_of_budget))
    about = f"{report.tokenizer.rpartition('/')[2]}, {report.num_rounds} rounds"
    return Summary(about=about, notes=report.notes, figures=figures, bars=bars)


def summarize_loop(output: bytes) -> Summary:
    report = msgspec.json.decode(output, type=Report)
    rows = report.lag or []
    about = f"{report.tokenizer.rpartition('/')[2]}, {report.num_rounds} rounds"
    return Summary(about=about, figures=list(_lag_figures(rows)), bars=list(_lag_bars(rows)))


def _figure(title: str, rows: Sequence[Row]) -> Figure:
    values = [
        Value(name=row.way, median=row.median, lowest=row.lowest, highest=row.highest, is_ours=row.way in _OURS)
        for row in sorted(rows, key=lambda row: row.way != _SERVICE)
    ]
    return Figure(key=slug(title), title=title, unit=rows[0].unit, is_higher_better=False, values=values)


def _ratio_bars(rows: Sequence[Row]) -> Iterator[Bar]:
    for beginning, other, limit in _RATIOS:
        of_group = {row.way: row for row in rows if row.group.startswith(beginning)}
        if _SERVICE in of_group and other in of_group:
            ours, theirs = of_group[_SERVICE], of_group[other]
            value = theirs.median / ours.median
            yield Bar(title=f"{ours.group} over {other}", limit=limit, is_at_least=True, unit="x", value=value)


def _time_bars(rows: Sequence[Row]) -> Iterator[Bar]:
    by_place = {(row.group, row.way): row.median for row in rows}
    hit = by_place.get(("hit on a long text", _SERVICE))
    if hit is not None:
        yield Bar(title="hit on a text of 64 KiB", limit=40.0, is_at_least=False, unit="us", value=hit)
    short = by_place.get(("short prompts, one after another", _SERVICE))
    bare = by_place.get(("short prompts, one after another", "fastokens"))
    if short is not None and bare is not None:
        title = "short prompts, more than the bare accelerated call"
        yield Bar(title=title, limit=15.0, is_at_least=False, unit="us", value=short - bare)
    streams = [row for row in rows if row.way == "headrace incremental"]
    for row in streams:
        yield Bar(title=row.group, limit=0.5, is_at_least=False, unit="us", value=row.median)


def _turns(report: ChatReport) -> Figure:
    """The family in which ours is least ahead of the library."""
    worst = next(row for row in report.families if row.family == report.against_tokenizers.worst_family)
    values = [
        Value(name=_SERVICE, median=worst.service_ms, is_ours=True),
        Value(name=_LIBRARY, median=worst.tokenizers_ms),
    ]
    if worst.fastokens_ms is not None:
        values.append(Value(name="fastokens", median=worst.fastokens_ms))
    title = f"turn {report.num_turns} of a chat, worst of {len(report.families)} families"
    return Figure(key="turns", title=title, unit="ms", is_higher_better=False, values=values)


def _chat_bars(report: ChatReport) -> Iterator[Bar]:
    title = f"turn {report.num_turns} of a chat, worst family, over"
    ratios = report.against_tokenizers
    yield Bar(title=f"{title} {_LIBRARY}", limit=200.0, is_at_least=True, unit="x", value=ratios.worst)
    median = title.replace("worst", "median")
    yield Bar(title=f"{median} {_LIBRARY}", limit=200.0, is_at_least=True, unit="x", value=ratios.median)
    if report.against_fastokens is not None:
        worst = report.against_fastokens.worst
        yield Bar(title=f"{title} fastokens", limit=1.0, is_at_least=True, unit="x", value=worst)


def _worst_case(row: WorstCaseRow) -> Figure:
    values = [
        Value(name=_SERVICE, median=row.service_ms, is_ours=True),
        Value(name=_LIBRARY, median=row.tokenizers_ms),
    ]
    title = f"{row.num_chars / 1e6:g} MB of {row.case}"
    return Figure(key=slug(title), title=title, unit="ms", is_higher_better=False, values=values)


def _worst_case_bars(row: WorstCaseRow) -> Iterator[Bar]:
    title = f"short prompts beside {row.num_chars / 1e6:g} MB of {row.case}"
    yield Bar(title=f"{title}, p99", limit=_MAX_SHORT_P99_MS, is_at_least=False, unit="ms", value=row.beside.p99_ms)
    value = row.p50_ratio
    yield Bar(title=f"{title}, p50 over alone", limit=_MAX_BESIDE, is_at_least=False, unit="x", value=value)


def _lag_figures(rows: Sequence[LagRow]) -> Iterator[Figure]:
    """The idle loop is what they all begin with, and no peer."""
    busy = sorted((row for row in rows if row.scenario != "idle loop"), key=lambda row: row.scenario != _SERVICE)
    columns = (
        ("lag-p99-9", "lag of the loop, p99.9", "ms", False, [row.p99_9_ms for row in busy]),
        ("lag-max", "lag of the loop, max", "ms", False, [row.max_ms for row in busy]),
        ("rate", "prompts of 100k tokens meanwhile", "prompts/s", True, [row.prompts_per_s for row in busy]),
    )
    for key, title, unit, is_higher_better, numbers in columns:
        values = [
            Value(name=row.scenario, median=number, is_ours=row.scenario in _OURS)
            for row, number in zip(busy, numbers, strict=True)
        ]
        yield Figure(key=key, title=title, unit=unit, is_higher_better=is_higher_better, values=values)


def _lag_bars(rows: Sequence[LagRow]) -> Iterator[Bar]:
    for row in rows:
        if row.scenario == _SERVICE:
            p99_9, most = row.p99_9_above_idle_ms, row.max_above_idle_ms
            title = "lag above the idle loop's"
            yield Bar(title=f"{title}, p99.9", limit=_MAX_LAG_P99_9_MS, is_at_least=False, unit="ms", value=p99_9)
            yield Bar(title=f"{title}, max", limit=_MAX_LAG_MS, is_at_least=False, unit="ms", value=most)
