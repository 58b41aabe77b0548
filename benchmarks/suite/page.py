"""The results as Markdown: what bars are missed and where peers are better, then a table for each benchmark. Pure."""

from collections.abc import Iterator, Mapping, Sequence

from benchmarks.suite.record import Bar, Benchmark, Figure, Run, Value

BEGIN, END = "<!-- results: begin (written by `make bench`) -->", "<!-- results: end -->"
_WORDS = {True: "met", False: "**missed**", None: "not measured"}
_EQUAL = 0.02
"""Nearer than this is no difference."""
_COMMIT_CHARS = 10

Measured = tuple[Run, Benchmark]


def with_results(page: str, results: str) -> str:
    """`page` with other results between its marks. Raises ValueError without them."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n\n{results.strip()}\n\n{END}{after}"


def results(measured: Sequence[Measured], *, titles: Mapping[str, str], plots: Mapping[str, Sequence[str]]) -> str:
    """The part between the marks. `plots` are paths, beside the page, of the pictures of each benchmark."""
    if not measured:
        return "Nothing is measured yet: `make bench`."
    parts = [_overview(measured)]
    for run, benchmark in measured:
        title = titles.get(benchmark.name, benchmark.name)
        parts.append(_section(run, benchmark, title=title, plots=plots.get(benchmark.name, ())))
    return "\n\n".join(parts)


def _overview(measured: Sequence[Measured]) -> str:
    bars = [(benchmark.name, bar) for _, benchmark in measured for bar in benchmark.bars]
    counts = {is_met: sum(bar.is_met is is_met for _, bar in bars) for is_met in (True, False, None)}
    lines = [f"Bars: {counts[True]} met, {counts[False]} missed, {counts[None]} not measured."]
    if missed := [
        f"- {name}, {_cell(bar.title)}: {_value(bar)}, limit {_limit(bar)}" for name, bar in bars if _is_missed(bar)
    ]:
        lines += ["\nMissed:\n", *missed]
    if lost := [line for _, benchmark in measured for line in _lost(benchmark)]:
        lines += ["\nWhere others are better, and how many times:\n", *lost]
    if failed := [f"- {one.name}: {_cell(one.error)}" for _, one in measured if one.error is not None]:
        lines += ["\nFailed:\n", *failed]
    return "\n".join(lines)


def _is_missed(bar: Bar) -> bool:
    return bar.is_met is False


def _lost(benchmark: Benchmark) -> Iterator[str]:
    """A line for each figure, with the best peer first."""
    for figure in benchmark.figures:
        better = [(ratio, peer) for peer, ratio in _ratios(figure) if ratio is not None and ratio < 1 - _EQUAL]
        if better:
            better.sort(key=lambda one: one[0])
            peers = ", ".join(f"{_cell(peer.name)} {number(1 / ratio)} x" for ratio, peer in better)
            yield f"- {benchmark.name}, {_cell(figure.title)}: {peers}"


def _section(run: Run, benchmark: Benchmark, *, title: str, plots: Sequence[str]) -> str:
    lines = [f"### {title}", "", _origin(run, benchmark)]
    if benchmark.error is not None:
        lines += ["", f"It failed: {_cell(benchmark.error)}"]
    if benchmark.figures:
        lines += ["", *_figures_table(benchmark.figures)]
    if benchmark.bars:
        lines += ["", *_bars_table(benchmark.bars)]
    for note in benchmark.notes:
        lines += ["", _cell(note)]
    for path in plots:
        lines += ["", f"![{benchmark.name}]({path})"]
    return "\n".join(lines)


def _origin(run: Run, benchmark: Benchmark) -> str:
    machine = run.machine
    commit = run.commit[:_COMMIT_CHARS] + (" and changes that were not committed" if run.is_dirty else "")
    text = (
        f"`{benchmark.command}`, {run.begun_at[:10]}, commit {commit}; {machine.cpu}, {machine.num_cores} cores, load "
        f"{benchmark.load:g} before, Python {machine.python}; {benchmark.elapsed_s:,.0f} s."
    )
    return f"{text} {benchmark.about}." if benchmark.about else text


def _figures_table(figures: Sequence[Figure]) -> Iterator[str]:
    """Without the column of others where nobody else was measured."""
    if not any(_ratios(figure) for figure in figures):
        yield "| | Headrace |"
        yield "|---|---|"
        yield from (f"| {_cell(figure.title)} | {_all_own(figure)} |" for figure in figures)
        return
    yield "| | Headrace | how many times better than the others |"
    yield "|---|---|---|"
    for figure in figures:
        others = "<br>".join(_other(peer, ratio) for peer, ratio in _ratios(figure))
        yield f"| {_cell(figure.title)} | {_all_own(figure)} | {others or '-'} |"


def _all_own(figure: Figure) -> str:
    return "<br>".join(_own(value, figure) for value in figure.values if value.is_ours) or "-"


def _own(value: Value, figure: Figure) -> str:
    """The first is the one that is compared, and needs no name."""
    name = "" if value is figure.ours else f"{_cell(value.name)} "
    return f"{name}{_spread(value)} {figure.unit}"


def _other(peer: Value, ratio: float | None) -> str:
    if ratio is None:
        return f"{_cell(peer.name)} ({number(peer.median)})"
    shown = f"{number(ratio)} x"
    if ratio < 1 - _EQUAL:
        shown = f"**{shown}**"
    return f"{shown} {_cell(peer.name)} ({number(peer.median)})"


def _ratios(figure: Figure) -> list[tuple[Value, float | None]]:
    return [(value, figure.times_better(value)) for value in figure.values if not value.is_ours]


def _spread(value: Value) -> str:
    ends = [number(end) for end in (value.lowest, value.highest) if end is not None and end != value.median]
    return f"{number(value.median)} ({' to '.join(ends)})" if ends else number(value.median)


def _bars_table(bars: Sequence[Bar]) -> Iterator[str]:
    yield "| bar | limit | measured | |"
    yield "|---|---|---|---|"
    for bar in bars:
        yield f"| {_cell(bar.title)} | {_limit(bar)} | {_value(bar)} | {_WORDS[bar.is_met]} |"


def _limit(bar: Bar) -> str:
    return f"{'>=' if bar.is_at_least else '<='} {number(bar.limit)} {bar.unit}"


def _value(bar: Bar) -> str:
    return "-" if bar.value is None else f"{number(bar.value)} {bar.unit}"


def number(value: float) -> str:
    """Three digits, or all before the point."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{float(f'{value:.3g}'):g}"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())
