"""Pictures of figures that have peers: bars as SVG files that stand by themselves, in light and dark. Pure."""

from collections.abc import Mapping, Sequence

from benchmarks.suite.page import number
from benchmarks.suite.record import Benchmark, Figure
from headrace.cli.svg_charts import Bar, bars

PLOTTED: Mapping[str, Sequence[str]] = {
    "tokenization": ("beside-other-libraries-4k-tokens", "turns", "prompts-of-8-tokens-256-callers"),
    "loop": ("lag-max",),
    "engine": ("single", "streams16", "streams64", "cold", "hit"),
    "gateway": ("small-rate", "large-rate", "chats-rate", "streams-cores"),
    "routing": ("mooncake-conversation-trace-hit-rate", "mooncake-conversation-trace-simulated-ttft-mean"),
}
"""Keys of figures, by benchmark."""
_MAX_LABEL_CHARS = 22
_STYLE = """<style>
text{font:12px sans-serif;fill:#333}rect{fill:#9aa5b1}.s0{fill:#0b7285}
@media(prefers-color-scheme:dark){text{fill:#ddd}rect{fill:#6b7580}.s0{fill:#3bc9db}}
</style>"""
_TITLE_HEIGHT = 24


def plots_of(benchmark: Benchmark) -> dict[str, str]:
    """SVG by the name of its file."""
    wanted = PLOTTED.get(benchmark.name, ())
    return {
        f"{benchmark.name}-{figure.key}.svg": picture(figure)
        for figure in benchmark.figures
        if figure.key in wanted and figure.ours is not None and any(not value.is_ours for value in figure.values)
    }


def picture(figure: Figure) -> str:
    """Ours first and in colour, the others in their order."""
    values = sorted(figure.values, key=lambda value: value is not figure.ours)
    rows = [Bar(label=_label(value.name), value=value.median, text=number(value.median)) for value in values]
    better = "more is better" if figure.is_higher_better else "less is better"
    title = f"{figure.title}, {figure.unit} ({better})"
    return _alone(bars(rows, title=title), title=title)


def _alone(svg: str, *, title: str) -> str:
    """A file of its own: with its namespace, colours, and the title above."""
    head, _, rest = svg.partition(">")
    width, _, height = head.partition('viewBox="0 0 ')[2].rstrip('"').partition(" ")
    head = head.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ').replace(
        f'viewBox="0 0 {width} {height}"', f'viewBox="0 -{_TITLE_HEIGHT} {width} {int(height) + _TITLE_HEIGHT}"'
    )
    escaped = title.replace("&", "&amp;").replace("<", "&lt;")
    return f'{head}>{_STYLE}<text x="4" y="-8">{escaped}</text>{rest}\n'


def _label(name: str) -> str:
    return name if len(name) <= _MAX_LABEL_CHARS else f"{name[: _MAX_LABEL_CHARS - 1]}\u2026"
