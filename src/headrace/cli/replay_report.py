"""The outcomes of `headrace replay` as one HTML page with its charts in it: nothing else is loaded."""

from collections.abc import Callable, Sequence
from html import escape
from itertools import groupby

from headrace.cli.svg_charts import Bar, Line, bars, lines
from headrace.gateway.simulation import Outcome

_STYLE = """
:root{--bg:#f3f6f7;--card:#fff;--ink:#13212a;--soft:#52656f;--line:#dde5e9;
--c0:#0b7285;--c1:#b35900;--c2:#5f3dc4;--c3:#2b8a3e;--c4:#c2255c;--c5:#13212a}
@media (prefers-color-scheme:dark){:root{--bg:#0c1317;--card:#141d23;--ink:#e7eff2;--soft:#9cb0ba;--line:#25333b;
--c0:#53c6dd;--c1:#ffa94d;--c2:#b197fc;--c3:#69db7c;--c4:#faa2c1;--c5:#e7eff2}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:84rem;padding:1.5rem;background:var(--bg);color:var(--ink);
font:15px/1.5 system-ui,sans-serif;font-variant-numeric:tabular-nums}
h1{font-size:1.4rem;margin:0}h2{font-size:1rem;margin:0 0 .6rem}p{max-width:60rem}.soft{color:var(--soft)}
.grid2{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(26rem,100%),1fr));gap:1rem}
section{background:var(--card);border:1px solid var(--line);border-radius:.75rem;padding:1rem;margin-bottom:1rem;
min-width:0}
.grid2 section{margin:0}.grid2{margin-bottom:1rem}.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.9rem}
th,td{padding:.35rem 1rem .35rem 0;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}
th{color:var(--soft);font-weight:500}th:first-child,td:first-child{text-align:left}
svg{display:block;width:100%;height:auto}svg text{fill:var(--soft);font-size:12px}
.grid{stroke:var(--line);fill:none}.mark{stroke:var(--ink);stroke-width:1.5;stroke-dasharray:3 2}
.line{fill:none!important;stroke-width:2;stroke-linejoin:round}
.legend{display:flex;flex-wrap:wrap;gap:.2rem 1rem;list-style:none;margin:.5rem 0 0;padding:0;font-size:.85rem}
.legend i{display:inline-block;width:.8rem;height:.8rem;border-radius:.2rem;margin-right:.4rem;vertical-align:-.1rem}
""" + "".join(f".s{at}{{fill:var(--c{at});stroke:var(--c{at});background:var(--c{at})}}" for at in range(6))


def report_page(outcomes: Sequence[Outcome], *, title: str, model: str, command: str) -> str:
    """The page. `model` says what an engine is here, `command` makes the page again."""
    first = [one for one in outcomes if _size_of(one) == _size_of(outcomes[0])]
    charts = [_hits(first), _mean_ttfts(first), _ttfts(first), _loads(first)]
    if len({one.num_endpoints for one in outcomes}) > 1:
        charts += [_decisions(outcomes), _index(outcomes), _hits_by_size(outcomes)]
    if len({one.num_gateways for one in outcomes}) > 1:
        charts += [_hits_by_gateways(outcomes), _ttfts_by_gateways(outcomes)]
    sections = "".join(f"<section><h2>{escape(name)}</h2>{chart}</section>" for name, chart in charts)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" '
        f'content="light dark"><title>{escape(title)}</title><style>{_STYLE}</style></head><body>'
        f'<h1>{escape(title)}</h1><p class="soft">{escape(model)}</p><div class="grid2">{sections}</div>'
        f'<section><h2>All figures</h2><div class="scroll" tabindex="0">{_table(outcomes)}</div></section>'
        f'<p class="soft">Made by <code>{escape(command)}</code></p></body></html>\n'
    )


def size_text(outcome: Outcome) -> str:
    """How many endpoints and gateways there were."""
    gateways = f", {outcome.num_gateways} gateways" if outcome.num_gateways > 1 else ""
    return f"{outcome.num_endpoints} endpoints{gateways}"


def _size_of(outcome: Outcome) -> tuple[int, int]:
    return outcome.num_endpoints, outcome.num_gateways


def _hits(outcomes: Sequence[Outcome]) -> tuple[str, str]:
    rows = [
        Bar(label=one.policy, value=one.hit_ratio, text=f"{one.hit_ratio:.1%}", mark=one.ceiling_ratio)
        for one in outcomes
    ]
    name = f"Hit rate with {size_text(outcomes[0])} (dashes: ceiling of the capacity)"
    return name, bars(rows, title=name)


def _mean_ttfts(outcomes: Sequence[Outcome]) -> tuple[str, str]:
    name = "Mean time to first token"
    rows = [Bar(label=one.policy, value=one.mean_ttft_s, text=f"{one.mean_ttft_s:.3f} s") for one in outcomes]
    return name, bars(rows, title=name)


def _ttfts(outcomes: Sequence[Outcome]) -> tuple[str, str]:
    name = "Time to first token: so many requests had theirs by then"
    series = []
    for one in outcomes:
        last = len(one.ttft_quantiles_s) - 1
        series.append(
            Line(label=one.policy, points=[(max(s, 1e-3), at / last) for at, s in enumerate(one.ttft_quantiles_s)])
        )
    return name, lines(
        series,
        title=name,
        x_label="seconds",
        y_label="of the requests",
        x_text=lambda x: f"{x:g}",
        y_text=lambda y: f"{y:.0%}",
        is_log_x=True,
        y_top=1.0,
    )


def _loads(outcomes: Sequence[Outcome]) -> tuple[str, str]:
    name = "Prompt tokens computed per endpoint, the busiest first, in parts of the mean"
    series = []
    for one in outcomes:
        mean = sum(one.loads) / len(one.loads)
        series.append(Line(label=one.policy, points=[(at + 1.0, load / mean) for at, load in enumerate(one.loads)]))
    return name, lines(
        series,
        title=name,
        x_label="endpoint",
        y_label="of the mean",
        x_text=lambda x: f"{x:g}",
        y_text=lambda y: f"{y:.1f}",
    )


def _decisions(outcomes: Sequence[Outcome]) -> tuple[str, str]:
    name = "Cost of a decision"
    series = []
    for policy, ones in _by_policy([one for one in outcomes if one.num_gateways == outcomes[0].num_gateways]):
        series.append(Line(label=f"{policy} p50", points=[(one.num_endpoints, one.decision_p50_us) for one in ones]))
        series.append(Line(label=f"{policy} p99", points=[(one.num_endpoints, one.decision_p99_us) for one in ones]))
    return name, _over_endpoints(series, name, y_label="microseconds", digits=0)


def _index(outcomes: Sequence[Outcome]) -> tuple[str, str]:
    name = "Memory of a gateway's prefix index"
    ones_of = _by_policy([one for one in outcomes if one.num_gateways == outcomes[0].num_gateways])
    series = [
        Line(label=policy, points=[(one.num_endpoints, one.index_bytes / 2**20) for one in ones])
        for policy, ones in ones_of
    ]
    return name, _over_endpoints(series, name, y_label="MiB", digits=0)


def _hits_by_size(outcomes: Sequence[Outcome]) -> tuple[str, str]:
    name = "Hit rate, as the load grows with the endpoints"
    ones_of = _by_policy([one for one in outcomes if one.num_gateways == outcomes[0].num_gateways])
    series = [
        Line(label=policy, points=[(one.num_endpoints, 100 * one.hit_ratio) for one in ones])
        for policy, ones in ones_of
    ]
    return name, _over_endpoints(series, name, y_label="%", digits=0)


def _hits_by_gateways(outcomes: Sequence[Outcome]) -> tuple[str, str]:
    name = "Hit rate of gateways that share nothing"
    return name, _over_gateways(outcomes, name, value_of=lambda one: 100 * one.hit_ratio, y_label="%", digits=0)


def _ttfts_by_gateways(outcomes: Sequence[Outcome]) -> tuple[str, str]:
    name = "Mean time to first token of gateways that share nothing"
    return name, _over_gateways(outcomes, name, value_of=lambda one: one.mean_ttft_s, y_label="seconds", digits=1)


def _over_gateways(
    outcomes: Sequence[Outcome], name: str, *, value_of: Callable[[Outcome], float], y_label: str, digits: int
) -> str:
    ordered = sorted(outcomes, key=lambda one: (one.policy, one.num_endpoints, one.num_gateways))
    series = [
        Line(label=f"{policy}, {size} endpoints", points=[(one.num_gateways, value_of(one)) for one in ones])
        for (policy, size), ones in groupby(ordered, key=lambda one: (one.policy, one.num_endpoints))
    ]
    return lines(
        series,
        title=name,
        x_label="gateways",
        y_label=y_label,
        x_text=lambda x: f"{x:g}",
        y_text=lambda y: f"{y:.{digits}f}",
        is_log_x=True,
    )


def _over_endpoints(series: Sequence[Line], name: str, *, y_label: str, digits: int) -> str:
    return lines(
        series,
        title=name,
        x_label="endpoints",
        y_label=y_label,
        x_text=lambda x: f"{x:g}",
        y_text=lambda y: f"{y:,.{digits}f}",
        is_log_x=True,
    )


def _by_policy(outcomes: Sequence[Outcome]) -> list[tuple[str, list[Outcome]]]:
    ordered = sorted(outcomes, key=lambda one: (one.policy, one.num_endpoints))
    return [(policy, list(ones)) for policy, ones in groupby(ordered, key=lambda one: one.policy)]


def _table(outcomes: Sequence[Outcome]) -> str:
    names = (
        "policy",
        "endpoints",
        "gateways",
        "requests",
        "hit",
        "ceiling",
        "no limit",
        "TTFT mean",
        "p50",
        "p99",
        "decision p50",
        "p99",
        "spread",
        "index",
    )
    head = "".join(f'<th scope="col">{name}</th>' for name in names)
    rows = "".join("<tr>" + "".join(f"<td>{escape(text)}</td>" for text in _texts(one)) + "</tr>" for one in outcomes)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _texts(one: Outcome) -> list[str]:
    return [
        one.policy,
        f"{one.num_endpoints:,}",
        f"{one.num_gateways:,}",
        f"{one.num_requests:,}",
        *(f"{ratio:.2%}" for ratio in (one.hit_ratio, one.ceiling_ratio, one.unbounded_ratio)),
        *(f"{ttft_s:.3f} s" for ttft_s in (one.mean_ttft_s, one.p50_ttft_s, one.p99_ttft_s)),
        f"{one.decision_p50_us:,.0f} us",
        f"{one.decision_p99_us:,.0f} us",
        f"{one.load_spread:.3f}",
        f"{one.index_bytes / 2**20:.1f} MiB",
    ]
