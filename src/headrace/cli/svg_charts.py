"""Bars and lines as SVG for pages without any script. Knows nothing of what is drawn.

Colours are classes, `s0` to `s5`, that the page gives; every mark also has a text for a pointer that rests on it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

_WIDTH = 640
_ROW = 30
_LEFT = 150
_LINES_HEIGHT = 280
_MARGIN = (16, 16, 44, 62)
"""Above, right, below, left of a chart of lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar of a chart; `mark` is a limit that is drawn across it."""

    label: str
    value: float
    text: str
    mark: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Points in order of x."""

    label: str
    points: Sequence[tuple[float, float]]


def bars(rows: Sequence[Bar], *, title: str, top: float | None = None) -> str:
    """Bars that lie, one below the other, from 0 to `top`."""
    most = top or max([*(row.value for row in rows), *(row.mark or 0.0 for row in rows)], default=1.0) or 1.0
    scale = (_WIDTH - _LEFT - 80) / most
    parts = []
    for at, row in enumerate(rows):
        y = at * _ROW + 4
        width = max(1.0, row.value * scale)
        parts.append(
            f'<text x="{_LEFT - 10}" y="{y + 15}" text-anchor="end">{escape(row.label)}</text>'
            f'<rect class="s{at % 6}" x="{_LEFT}" y="{y}" width="{width:.1f}" height="20" rx="3"/>'
            f'<text x="{_LEFT + width + 8:.1f}" y="{y + 15}">{escape(row.text)}</text>'
        )
        if row.mark is not None:
            x = _LEFT + row.mark * scale
            parts.append(f'<path class="mark" d="M{x:.1f} {y - 3}v26"/>')
    return _svg(parts, title=title, height=len(rows) * _ROW + 6)


def lines(
    series: Sequence[Line],
    *,
    title: str,
    x_label: str,
    y_label: str,
    x_text: Callable[[float], str],
    y_text: Callable[[float], str],
    is_log_x: bool = False,
    y_top: float | None = None,
) -> str:
    """Lines over one pair of axes; y begins at 0."""
    above, right, below, left = _MARGIN
    xs = [x for line in series for x, _ in line.points]
    ys = [y for line in series for _, y in line.points]
    x_of = _axis(min(xs), max(xs), begin=left, end=_WIDTH - right, is_log=is_log_x)
    y_of = _axis(0.0, y_top or (max(ys) * 1.05 or 1.0), begin=_LINES_HEIGHT - below, end=above, is_log=False)
    parts = [_grid(x_of, y_of, x_text=x_text, y_text=y_text)]
    parts.append(f'<text x="{_WIDTH - right}" y="{_LINES_HEIGHT - 6}" text-anchor="end">{escape(x_label)}</text>')
    parts.append(f'<text x="{left}" y="10">{escape(y_label)}</text>')
    for at, line in enumerate(series):
        points = "L".join(f"{x_of(x):.1f} {y_of(y):.1f}" for x, y in line.points)
        parts.append(f'<path class="line s{at % 6}" d="M{points}"><title>{escape(line.label)}</title></path>')
        if len(line.points) <= 12:
            parts += [
                f'<circle class="s{at % 6}" cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="3">'
                f"<title>{escape(f'{line.label}: {x_text(x)}, {y_text(y)}')}</title></circle>"
                for x, y in line.points
            ]
    return _svg(parts, title=title, height=_LINES_HEIGHT) + _legend([line.label for line in series])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axis:
    low: float
    high: float
    begin: float
    end: float
    is_log: bool

    def __call__(self, value: float) -> float:
        low, high, value = (self._place(one) for one in (self.low, self.high, value))
        return self.begin + (self.end - self.begin) * ((value - low) / (high - low) if high > low else 0.5)

    def ticks(self) -> list[float]:
        if self.is_log:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            steps = [10.0**at * part for at in range(first, last + 1) for part in (1, 2, 5)]
            inside = [step for step in steps if self.low <= step <= self.high]
            return inside if len(inside) <= 7 else [step for step in inside if f"{step:e}"[0] == "1"]
        span = self.high - self.low
        step = 10.0 ** math.floor(math.log10(span / 4)) if span > 0 else 1.0
        step *= next(part for part in (1, 2, 5, 10) if span / (step * part) <= 6)
        return [self.low + step * at for at in range(int(span / step) + 1)]

    def _place(self, value: float) -> float:
        return math.log(max(value, 1e-12)) if self.is_log else value


def _axis(low: float, high: float, *, begin: float, end: float, is_log: bool) -> _Axis:
    return _Axis(low=max(low, 1e-6) if is_log else low, high=high, begin=begin, end=end, is_log=is_log)


def _grid(x_of: _Axis, y_of: _Axis, *, x_text: Callable[[float], str], y_text: Callable[[float], str]) -> str:
    parts = []
    for x in x_of.ticks():
        at = x_of(x)
        parts.append(f'<path class="grid" d="M{at:.1f} {y_of.end}V{y_of.begin}"/>')
        parts.append(f'<text x="{at:.1f}" y="{y_of.begin + 16}" text-anchor="middle">{escape(x_text(x))}</text>')
    for y in y_of.ticks():
        at = y_of(y)
        parts.append(f'<path class="grid" d="M{x_of.begin} {at:.1f}H{x_of.end}"/>')
        parts.append(f'<text x="{x_of.begin - 6}" y="{at + 4:.1f}" text-anchor="end">{escape(y_text(y))}</text>')
    return "".join(parts)


def _legend(labels: Sequence[str]) -> str:
    items = "".join(f'<li><i class="s{at % 6}"></i>{escape(label)}</li>' for at, label in enumerate(labels))
    return f'<ul class="legend">{items}</ul>'


def _svg(parts: Sequence[str], *, title: str, height: float) -> str:
    head = f'<svg role="img" aria-label="{escape(title)}" viewBox="0 0 {_WIDTH} {height}">'
    return head + "".join(parts) + "</svg>"
