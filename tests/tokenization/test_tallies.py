"""What was counted as plain numbers reads like the metrics library's own counters and histograms."""

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import generate_latest

from headrace.tokenization.tallies import CounterTally, HistogramTally


def _without_created(registry: CollectorRegistry) -> list[str]:
    return [line for line in generate_latest(registry).decode().splitlines() if "_created" not in line]


def test_a_registry_shows_the_same_text_as_with_the_librarys_own_metrics() -> None:
    own, library = CollectorRegistry(), CollectorRegistry()
    counter = Counter("c", "Things.", ("kind",), registry=library)
    histogram = Histogram("h_seconds", "Times.", ("lane",), buckets=(0.1, 1), registry=library)
    counter_tally = CounterTally("c", "Things.", ("kind",), registry=own)
    histogram_tally = HistogramTally("h_seconds", "Times.", ("lane",), buckets=(0.1, 1), registry=own)
    for kind, number in (("a", 1), ("b", 3), ("a", 2)):
        counter.labels(kind).inc(number)
        counter_tally.add(kind, number=number)
    for seconds in (0.05, 0.1, 0.5, 1, 7):
        histogram.labels("short").observe(seconds)
        histogram_tally.observe(seconds, "short")
    assert _without_created(own) == _without_created(library)
    assert own.get_sample_value("c_total", {"kind": "a"}) == 3


def test_one_registry_takes_a_name_once() -> None:
    registry = CollectorRegistry()
    CounterTally("c", "Things.", ("kind",), registry=registry)
    with pytest.raises(ValueError, match="Duplicated"):
        CounterTally("c", "Things.", ("kind",), registry=registry)
