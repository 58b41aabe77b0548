"""One frame of `headrace top`: a gateway's state as tables of text. Knows nothing of connections."""

import time
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headrace.gateway.admin.snapshot import EndpointView, LaneView, Snapshot

_SPARKS = "▁▂▃▄▅▆▇█"
_MAX_SPARK_WIDTH = 20
_TILE_WIDTH = 28
"""Of the name and value of a tile."""
_NARROW = 100
_FEWEST_DECISIONS = 3


def frame(state: Snapshot, *, width: int, height: int | None, trouble: str | None = None) -> RenderableType:
    """The whole of it, for a terminal so wide; with a `height`, as many decisions as there is room for."""
    parts: list[RenderableType] = [_header(state, trouble), _tiles(state, width), _endpoints(state, width)]
    parts.append(Columns([_lanes(state), _parity(state)], padding=(0, 4)))
    if state.admission.keys:
        parts.append(_keys(state))
    if notes := _notes(state):
        parts.append(notes)
    parts.append(_decisions(state, width, num_shown=_num_decisions(state, height)))
    return Group(*parts)


def _num_decisions(state: Snapshot, height: int | None) -> int:
    if height is None:
        return len(state.decisions)
    used = 16 + len(state.endpoints) + max(len(state.tokenization.lanes), len(state.parity)) + len(state.admission.keys)
    return max(_FEWEST_DECISIONS, height - used)


def _header(state: Snapshot, trouble: str | None) -> Text:
    num_healthy = sum(one.is_healthy for one in state.endpoints)
    is_whole = num_healthy == len(state.endpoints) > 0
    text = Text.assemble(
        ("Headrace ", "bold"),
        state.version,
        "  ",
        (
            f"{num_healthy} of {len(state.endpoints)} endpoints healthy",
            "bold green" if is_whole else "bold yellow" if state.is_healthy else "bold red",
        ),
        f"  policy {state.policy}  up {_duration(state.uptime_s)}",
    )
    if trouble is not None:
        text.append(f"  {trouble}", "bold red")
    return text


def _tiles(state: Snapshot, width: int) -> Table:
    exact = sum(one.num_exact for one in state.parity)
    compared = exact + sum(one.num_drift for one in state.parity)
    num_columns = 4 if width >= 4 * (_TILE_WIDTH + 12) else 2
    room = min(_MAX_SPARK_WIDTH, width // num_columns - _TILE_WIDTH)
    tiles = [
        ("requests/s", _short(state.requests_per_s), _spark(state.requests_per_s_history, room)),
        ("tokens/s out", _short(state.tokens_per_s), _spark(state.tokens_per_s_history, room)),
        ("tokens/s in", _short(state.prompt_tokens_per_s), _spark(state.prompt_tokens_per_s_history, room)),
        ("cached", _percent(state.hit_ratio), _bar(state.hit_ratio)),
        ("in hand", f"{state.num_concurrent:,}", f"of {state.max_concurrent:,}"),
        ("added", _ms(state.times.overhead_p50_ms), f"p99 {_ms(state.times.overhead_p99_ms)}"),
        ("counts exact", _percent(exact / compared if compared else None), f"{compared - exact:,} drifted"),
        ("loop lag", _ms(state.loop_lag_ms), _spark(state.loop_lag_ms_history, room)),
    ]
    table = Table.grid(padding=(0, 2))
    for _ in range(num_columns * 3):
        table.add_column(no_wrap=True)
    for at in range(0, len(tiles), num_columns):
        cells: list[RenderableType] = []
        for name, value, more in tiles[at : at + num_columns]:
            cells += [Text(name, "dim"), Text(value, "bold"), Text(more, "cyan")]
        table.add_row(*cells)
    return table


def _endpoints(state: Snapshot, width: int) -> Table:
    columns = ["endpoint", "state", "in flight", "KV cache", "hit rate", "done", "failed"]
    table = _table(*columns, num_text=2, tail="why" if width >= _NARROW else None)
    bar_width = 6 if width >= _NARROW else 0
    for one in state.endpoints:
        word, style, why = _state_of(one)
        elsewhere = f" +{one.num_requests_elsewhere:,}" if one.num_requests_elsewhere else ""
        cells: list[RenderableType] = [
            Text(one.name, overflow="ellipsis"),
            Text(word, style),
            f"{one.num_in_flight:,}{elsewhere}",
            Text.assemble((_bar(one.kv_cache_usage, width=bar_width), "cyan"), " ", _percent(one.kv_cache_usage)),
            _percent(one.hit_ratio),
            f"{one.num_done:,}",
            Text(f"{one.num_failed:,}", "yellow" if one.num_failed else ""),
        ]
        table.add_row(*cells, *([Text(why, "dim")] if width >= _NARROW else []))
    return table


def _state_of(one: EndpointView) -> tuple[str, str, str]:
    if one.why_draining:
        return "draining", "yellow", one.why_draining
    if not one.is_healthy:
        return "down", "red", one.why
    if one.breaker != "closed":
        return one.breaker.replace("_", " "), "yellow", one.why
    return "healthy", "green", ""


def _lanes(state: Snapshot) -> Table:
    table = _table("lane", "texts/s", "waiting", "wait p99", "encode p50", "p99", num_text=1)
    for lane in state.tokenization.lanes:
        table.add_row(*_lane_texts(lane))
    return table


def _lane_texts(lane: LaneView) -> list[str]:
    times = (lane.wait_p99_ms, lane.encode_p50_ms, lane.encode_p99_ms)
    return [lane.name.replace("_", " "), _short(lane.per_s), f"{lane.num_waiting:,}", *map(_ms, times)]


def _parity(state: Snapshot) -> Table:
    table = _table("model", "exact", "drifted", num_text=1)
    for one in state.parity:
        table.add_row(
            Text(one.model), _percent(one.exact_ratio), Text(f"{one.num_drift:,}", "yellow" if one.num_drift else "")
        )
    return table


def _keys(state: Snapshot) -> Table:
    table = _table("key", "requests", "prompt tokens", "completion tokens", "cost", num_text=1)
    for one in state.admission.keys:
        table.add_row(
            Text(one.name), f"{one.num_requests:,}", _short(one.prompt_tokens), _short(one.completion_tokens), one.cost
        )
    return table


def _notes(state: Snapshot) -> Text | None:
    admission = state.admission
    waiting = [f"{number:,} {name}" for name, number in admission.num_waiting.items() if number]
    notes = [
        f"waiting: {', '.join(waiting)}" if waiting else None,
        f"limits are counted here alone: {admission.why_local}" if admission.why_local else None,
        f"keys may be out of date: {admission.why_keys_stale}" if admission.why_keys_stale else None,
    ]
    told = [note for note in notes if note is not None]
    return Text("; ".join(told), "yellow") if told else None


def _decisions(state: Snapshot, width: int, *, num_shown: int) -> Table:
    columns = ["time", "model", "endpoint", "outcome", "tokens", "cached"]
    table = _table(*columns, num_text=4, tail="why" if width >= _NARROW else None)
    for one in state.decisions[:num_shown]:
        cells: list[RenderableType] = [
            time.strftime("%H:%M:%S", time.localtime(one.time_s)),
            Text(one.model, overflow="ellipsis"),
            Text(one.endpoint, overflow="ellipsis"),
            Text(one.outcome.replace("_", " "), "green" if one.outcome.startswith("2") else "red"),
            _count(one.prompt_tokens),
            _count(one.cached_tokens),
        ]
        table.add_row(*cells, *([Text(one.reason, "dim")] if width >= _NARROW else []))
    return table


def _table(*columns: str, num_text: int, tail: str | None = None) -> Table:
    """The first `num_text` columns hold text, the others numbers; `tail` is text that takes the room that is left."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="dim", expand=tail is not None)
    for at, name in enumerate(columns):
        table.add_column(name, justify="left" if at < num_text else "right", no_wrap=True)
    if tail is not None:
        table.add_column(tail, no_wrap=True, overflow="ellipsis", ratio=1)
    return table


def _spark(values: Sequence[float], width: int) -> str:
    shown = values[-max(1, width) :]
    top = max(shown, default=0.0)
    if top <= 0:
        return _SPARKS[0] * len(shown)
    return "".join(_SPARKS[min(len(_SPARKS) - 1, int(value / top * len(_SPARKS)))] for value in shown)


def _bar(ratio: float | None, *, width: int = 10) -> str:
    if ratio is None:
        return ""
    filled = min(width, round(ratio * width))
    return "█" * filled + "░" * (width - filled)


def _percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.1%}"


def _ms(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f} ms" if value < 1 else f"{value:.1f} ms" if value < 100 else f"{value / 1e3:.2f} s"


def _short(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            return f"{value / (1e3 if unit == 'k' else size):.3g}{unit}"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"


def _count(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def _duration(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
