"""Writes docs/metrics.md from the metrics that the code registers: names, types, labels, meaning.

.venv/bin/python scripts/write_metrics.py
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector

from headrace.aio.stall import LoopStallMonitor
from headrace.engine.front.metrics import PrometheusStatLogger
from headrace.engine.statistics import EngineStatistics
from headrace.gateway.telemetry.instruments import Instruments
from headrace.gateway.workers.instruments import WorkerInstruments
from headrace.testing.fake_core import fake_engine_config
from headrace.tokenization import TokenizationService
from headrace.tokenization.remote.instruments import RemoteInstruments

PAGE = Path(__file__).resolve().parent.parent / "docs" / "metrics.md"
_HEAD = """\
# Metrics

Made by `scripts/write_metrics.py`; a test holds it to the code.

The gateway serves them on its admin port (`GET /metrics`), the engine's server on its own. Names follow the conventions
of Prometheus: base units, `_total` for counters; a histogram has `_bucket`, `_sum` and `_count`. What a client writes
never becomes a label's value: models are those that endpoints serve, routes those that exist, keys have no series. The
series of an endpoint go with it. With several workers each series of the gateway has the label `worker` as well; `sum
without (worker)` adds up what should be.

`deploy/prometheus/` has recorded rules and alerts over these, `deploy/grafana/` a dashboard; the runbook of the alerts
is in [operations.md](operations.md).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """One metric, as a scrape shows it."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str

    @property
    def samples(self) -> tuple[str, ...]:
        """The names that a query may use."""
        return (
            tuple(self.name + end for end in ("_bucket", "_sum", "_count"))
            if self.kind == "histogram"
            else (self.name,)
        )


class _Recorder(CollectorRegistry):
    """Remembers what was registered."""

    def __init__(self) -> None:
        super().__init__()
        self.collectors: list[Collector] = []

    def register(self, collector: Collector) -> None:
        self.collectors.append(collector)
        super().register(collector)


def components() -> dict[str, list[Described]]:
    """All metrics, by the part that has them."""
    parts: dict[str, Callable[[CollectorRegistry], object]] = {
        "Gateway": Instruments,
        "Gateway: workers": WorkerInstruments,
        "Tokenization (gateway and engine server)": lambda registry: TokenizationService(registry=registry),
        "Remote tokenizers": RemoteInstruments,
        "Event loop (gateway and engine server)": lambda registry: LoopStallMonitor(registry=registry),
        "Engine (vLLM's names)": _engine,
    }
    found: dict[str, list[Described]] = {}
    for title, build in parts.items():
        recorder = _Recorder()
        build(recorder)
        found[title] = list(_described(recorder.collectors))
    return found


def sample_names() -> frozenset[str]:
    """Every name that a query may use."""
    return frozenset(name for metrics in components().values() for metric in metrics for name in metric.samples)


def labels_of() -> dict[str, frozenset[str]]:
    """The labels of each name that a query may use, without those that Prometheus adds."""
    extra = {"bucket": {"le"}}
    return {
        name: frozenset(metric.labels) | extra.get(name.rpartition("_")[2], set())
        for metrics in components().values()
        for metric in metrics
        for name in metric.samples
    }


def page() -> str:
    """The whole page."""
    lines = [_HEAD]
    for title, metrics in components().items():
        lines.append(f"## {title}\n")
        lines.append("| metric | type | labels | |\n|---|---|---|---|")
        lines += [
            f"| `{one.name}` | {one.kind} | {', '.join(f'`{label}`' for label in one.labels)} | {one.text} |"
            for one in sorted(metrics, key=lambda metric: metric.name)
        ]
        lines.append("")
    return "\n".join(lines)


def _engine(registry: CollectorRegistry) -> PrometheusStatLogger:
    nothing = EngineStatistics(**{field.name: 0 for field in dataclasses.fields(EngineStatistics)})
    config = fake_engine_config(served_model_name="model", max_model_len=4096)
    return PrometheusStatLogger(config, registry=registry, statistics=lambda: nothing)


def _described(collectors: Sequence[Collector]) -> Iterator[Described]:
    for collector in collectors:
        # prometheus_client tells the labels of a metric without samples in no public way
        labels = getattr(collector, "labels", ())
        labels = labels if isinstance(labels, tuple) else getattr(collector, "_labelnames", ())
        for family in collector.collect():
            yield _of_family(family, labels)


def _of_family(family: Metric, labels: Sequence[str]) -> Described:
    seen = {label for sample in family.samples for label in sample.labels} - {"le"}
    kind = family.type
    return Described(
        name=family.name + ("_total" if kind == "counter" else ""),
        kind=kind,
        labels=tuple(labels) or tuple(sorted(seen)),
        text=family.documentation.rstrip(".").replace("|", "\\|") + ".",
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
