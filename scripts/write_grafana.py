"""Writes deploy/grafana/headrace.json: Grafana's dashboard. A test checks the names of every query.

.venv/bin/python scripts/write_grafana.py
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).resolve().parent.parent / "deploy" / "grafana" / "headrace.json"
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_HERE = 'instance=~"$instance"'
_ENDPOINT = f'{_HERE}, endpoint=~"$endpoint"'
_WIDTH = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel: queries by their legends."""

    title: str
    queries: dict[str, str]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    top: float | None = None


def _rate(name: str, by: str, more: str = _HERE) -> str:
    return f"sum by ({by}) (rate({name}{{{more}}}[$__rate_interval]))"


def _total(name: str) -> str:
    return f"sum(rate({name}{{{_HERE}}}[$__rate_interval]))"


def _quantiles(name: str, by: str = "", more: str = _HERE) -> dict[str, str]:
    labels = f"{by}, le" if by else "le"
    legend = f"{{{{{by}}}}} " if by else ""
    return {
        f"{legend}p{share * 100:g}": f"histogram_quantile({share}, {_rate(f'{name}_bucket', labels, more)})"
        for share in (0.5, 0.99)
    }


def _share(part: str, whole: str, by: str, more: str = _HERE) -> str:
    return f"{_rate(part, by, more)} / {_rate(whole, by, more)}"


ROWS: dict[str, Sequence[Panel]] = {
    "Now": (
        Panel(
            title="Endpoints healthy",
            queries={"": f"sum(max by (endpoint) (headrace_gateway_endpoint_healthy{{{_HERE}}}))"},
            kind="stat",
            width=4,
        ),
        Panel(
            title="Requests per second",
            queries={"": _total("headrace_gateway_requests_total")},
            kind="stat",
            width=4,
            unit="reqps",
        ),
        Panel(
            title="Completion tokens per second",
            queries={"": _total("headrace_gateway_completion_tokens_total")},
            kind="stat",
            width=4,
        ),
        Panel(
            title="Prompt tokens cached",
            queries={
                "": _total("headrace_gateway_endpoint_cached_prompt_tokens_total")
                + " / "
                + _total("headrace_gateway_endpoint_prompt_tokens_total")
            },
            kind="stat",
            width=4,
            unit="percentunit",
        ),
        Panel(
            title="Token counts exact",
            queries={
                "": f'sum(rate(headrace_parity_answers_total{{{_HERE}, result="exact"}}[$__range])) / '
                f'sum(rate(headrace_parity_answers_total{{{_HERE}, result=~"exact|drift"}}[$__range]))'
            },
            kind="stat",
            width=4,
            unit="percentunit",
        ),
        Panel(
            title="Loop stalls",
            queries={"": f"sum(increase(headrace_loop_stalls_total{{{_HERE}}}[$__range]))"},
            kind="stat",
            width=4,
        ),
    ),
    "Requests": (
        Panel(
            title="Answers by status",
            queries={"{{status}}": _rate("headrace_gateway_requests_total", "status")},
            unit="reqps",
        ),
        Panel(title="Whole request", queries=_quantiles("headrace_gateway_request_seconds"), unit="s"),
        Panel(title="Time added by the gateway", queries=_quantiles("headrace_gateway_overhead_seconds"), unit="s"),
        Panel(title="To the engine's first byte", queries=_quantiles("headrace_gateway_first_byte_seconds"), unit="s"),
        Panel(
            title="Requests in hand",
            queries={
                "in hand": f"sum(headrace_gateway_concurrent_requests{{{_HERE}}})",
                "client connections": f"sum(headrace_gateway_client_connections{{{_HERE}}})",
            },
        ),
        Panel(
            title="What went wrong",
            queries={
                "client left": _total("headrace_gateway_client_disconnects_total"),
                "sent once more": _total("headrace_gateway_retries_total"),
                "refused: {{why}}": _rate("headrace_gateway_refusals_total", "why"),
                "broke off: {{endpoint}}": _rate("headrace_gateway_broken_answers_total", "endpoint", _ENDPOINT),
            },
            unit="reqps",
        ),
    ),
    "Endpoints": (
        Panel(
            title="In flight",
            queries={"{{endpoint}}": f"sum by (endpoint) (headrace_gateway_in_flight{{{_ENDPOINT}}})"},
        ),
        Panel(
            title="KV cache in use",
            queries={
                "{{endpoint}}": f"max by (endpoint) (headrace_gateway_endpoint_kv_cache_usage_ratio{{{_ENDPOINT}}})"
            },
            unit="percentunit",
            top=1.0,
        ),
        Panel(
            title="Hit rate",
            queries={
                "{{endpoint}}": _share(
                    "headrace_gateway_endpoint_cached_prompt_tokens_total",
                    "headrace_gateway_endpoint_prompt_tokens_total",
                    "endpoint",
                    _ENDPOINT,
                )
            },
            unit="percentunit",
            top=1.0,
        ),
        Panel(
            title="Outcomes",
            queries={
                "{{endpoint}} {{outcome}}": _rate("headrace_gateway_attempts_total", "endpoint, outcome", _ENDPOINT)
            },
            unit="reqps",
        ),
        Panel(
            title="Healthy",
            queries={"{{endpoint}}": f"max by (endpoint) (headrace_gateway_endpoint_healthy{{{_ENDPOINT}}})"},
            top=1.0,
        ),
        Panel(
            title="KV events",
            queries={
                "sources": f"sum(headrace_gateway_kv_event_sources{{{_HERE}}})",
                "batches per second": _total("headrace_gateway_kv_event_batches_total"),
                "gaps": f"sum(increase(headrace_gateway_kv_event_gaps_total{{{_HERE}}}[$__rate_interval]))",
            },
        ),
    ),
    "Tokens": (
        Panel(
            title="Tokens per second",
            queries={
                "prompt": _total("headrace_gateway_prompt_tokens_total"),
                "of these cached": _total("headrace_gateway_cached_prompt_tokens_total"),
                "completion": _total("headrace_gateway_completion_tokens_total"),
            },
        ),
        Panel(
            title="Counts against the engines'",
            queries={"{{result}} {{reason}}": _rate("headrace_parity_answers_total", "result, reason")},
            unit="reqps",
        ),
        Panel(
            title="Cached tokens against the prediction",
            queries={"{{cause}}": _rate("headrace_parity_cached_answers_total", "cause")},
            unit="reqps",
        ),
        Panel(title="Encoding", queries=_quantiles("headrace_tokenization_encode_seconds", "lane"), unit="s"),
        Panel(
            title="Waiting for a thread",
            queries=_quantiles("headrace_tokenization_queue_wait_seconds", "lane"),
            unit="s",
        ),
        Panel(
            title="Characters whose tokens were known",
            queries={
                "{{content}}": 'sum by (content) (rate(headrace_tokenization_chars_total{instance=~"$instance", '
                'result!="encoded"}[$__rate_interval])) / ' + _rate("headrace_tokenization_chars_total", "content")
            },
            unit="percentunit",
            top=1.0,
        ),
        Panel(
            title="What was sent for a prompt",
            queries={"{{form}} {{why}}": _rate("headrace_parity_token_in_total", "form, why")},
            unit="reqps",
        ),
        Panel(
            title="Spending per hour",
            queries={"{{model}}": f"3600 * {_rate('headrace_gateway_cost_total', 'model')}"},
        ),
        Panel(
            title="Queues", queries={"{{priority}}": f"sum by (priority) (headrace_gateway_queued_requests{{{_HERE}}})"}
        ),
    ),
    "The gateway itself": (
        Panel(title="Event loop lag", queries=_quantiles("headrace_loop_lag_seconds"), unit="s"),
        Panel(
            title="What held the loop",
            queries={"{{section}}": _rate("headrace_loop_section_seconds_total", "section")},
            unit="percentunit",
        ),
        Panel(
            title="Memory",
            queries={
                "{{instance}} resident": f"sum by (instance) (process_resident_memory_bytes{{{_HERE}}})",
                "prefix index": f"sum(headrace_gateway_prefix_index_bytes{{{_HERE}}})",
                "tokenization cache": f"sum(headrace_tokenization_cache_bytes{{{_HERE}}})",
            },
            unit="bytes",
        ),
    ),
}


def dashboard() -> dict[str, object]:
    """Grafana's JSON."""
    panels: list[dict[str, object]] = []
    y = 0
    for title, row in ROWS.items():
        panels.append({"type": "row", "title": title, "id": len(panels) + 1, "gridPos": _place(0, y, _WIDTH, 1)})
        y += 1
        x, height = 0, 4 if row[0].kind == "stat" else 8
        for panel in row:
            if x + panel.width > _WIDTH:
                x, y = 0, y + height
            panels.append(_panel(panel, number=len(panels) + 1, place=_place(x, y, panel.width, height)))
            x += panel.width
        y += height
    return {
        "title": "Headrace",
        "uid": "headrace",
        "tags": ["headrace", "llm"],
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [_datasource_variable(), _variable("instance"), _variable("endpoint")]},
        "panels": panels,
    }


def _panel(panel: Panel, *, number: int, place: dict[str, int]) -> dict[str, object]:
    defaults: dict[str, object] = {"unit": panel.unit, "min": 0}
    if panel.top is not None:
        defaults["max"] = panel.top
    return {
        "type": panel.kind,
        "title": panel.title,
        "id": number,
        "gridPos": place,
        "datasource": _DATASOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + at), "expr": query, "legendFormat": legend, "datasource": _DATASOURCE}
            for at, (legend, query) in enumerate(panel.queries.items())
        ],
    }


def _place(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _datasource_variable() -> dict[str, object]:
    return {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}


def _variable(label: str) -> dict[str, object]:
    return {
        "name": label,
        "type": "query",
        "datasource": _DATASOURCE,
        "query": f"label_values(headrace_gateway_endpoint_healthy, {label})",
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "refresh": 2,
        "current": {"text": "All", "value": "$__all"},
    }


def text() -> str:
    """The file."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
