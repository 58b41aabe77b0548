"""What was counted as plain numbers reads like the metrics library's own counters and histograms."""

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import generate_latest

from headrace.tokenization.tallies import CounterTally, GaugeTally, HistogramTally


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


def test_a_gauge_has_the_series_that_it_was_given_last() -> None:
    registry = CollectorRegistry()
    gauge = GaugeTally("g", "State.", ("endpoint",), registry=registry)
    gauge.replace({("a",): 1.0, ("b",): 0.0})
    gauge.replace({("b",): 1.0})
    gauge.set("c", value=2)

    assert registry.get_sample_value("g", {"endpoint": "a"}) is None
    assert registry.get_sample_value("g", {"endpoint": "b"}) == 1.0
    assert registry.get_sample_value("g", {"endpoint": "c"}) == 2.0


def test_series_can_be_forgotten_by_one_of_their_labels() -> None:
    registry = CollectorRegistry()
    counter = CounterTally("c", "Things.", ("endpoint", "outcome"), registry=registry)
    for endpoint in ("a", "b"):
        counter.add(endpoint, "2xx")
        counter.add(endpoint, "5xx")
    counter.forget(endpoint="a")

    assert set(counter.by_labels()) == {("b", "2xx"), ("b", "5xx")}


def test_without_labels_there_is_a_series_from_the_start() -> None:
    registry = CollectorRegistry()
    CounterTally("c", "Things.", (), registry=registry)
    HistogramTally("h", "Times.", (), buckets=(1,), registry=registry)
    evictions = CounterTally("e", "Evictions.", (), registry=registry)
    evictions.read_from(lambda: 7)

    assert registry.get_sample_value("c_total") == 0
    assert registry.get_sample_value("h_count") == 0
    assert registry.get_sample_value("e_total") == 7


def test_a_histograms_buckets_add_up_over_its_other_labels() -> None:
    histogram = HistogramTally("h", "Times.", ("model", "lane"), buckets=(1, 2), registry=CollectorRegistry())
    for model, lane, seconds in (("m", "short", 0.5), ("n", "short", 1.5), ("n", "bulk", 9.0)):
        histogram.observe(seconds, model, lane)

    assert histogram.counts(lane="short") == [1, 1, 0]
    assert histogram.counts() == [1, 1, 1]
    assert histogram.counts(lane="other") == [0, 0, 0]


def test_adding_to_the_counts_themselves_is_counting_and_looking_is_not() -> None:
    registry = CollectorRegistry()
    counter = CounterTally("c", "Things.", ("endpoint",), registry=registry)
    counter.counts[("a",)] += 1
    counter.add("a", number=2)

    assert counter.by_labels().get(("b",)) is None
    assert counter.counts[("b",)] == 0
    assert registry.get_sample_value("c_total", {"endpoint": "a"}) == 3
    assert registry.get_sample_value("c_total", {"endpoint": "b"}) is None
