"""Counters, gauges and histograms as plain numbers, which become samples when somebody reads the registry.

Counting costs the event loop a fraction of a microsecond, a tenth of the library's own objects. Count in one thread.
"""

import itertools
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric


class Counts(dict[tuple[str, ...], float]):
    """Numbers by the values of labels, in their order. What was never counted reads as 0, and stays no series."""

    def __missing__(self, labels: tuple[str, ...]) -> float:
        return 0


class CounterTally:
    """A counter; `add` takes the values of its labels in order. What every request counts adds to `counts` itself:
    `tally.counts["a", "b"] += 1` is the same without a call."""

    def __init__(self, name: str, documentation: str, labels: Sequence[str], *, registry: CollectorRegistry) -> None:
        self._about = (name, documentation, labels)
        self.counts = Counts() if labels else Counts({(): 0})
        self._read: Callable[[], float] | None = None
        registry.register(self)

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(self._about[2])

    def add(self, *labels: str, number: float = 1) -> None:
        self.counts[labels] += number

    def read(self, number: float) -> None:
        """Take over a count that is kept elsewhere, of a counter without labels."""
        self.counts[()] = number

    def read_from(self, count: Callable[[], float]) -> None:
        """Ask `count` whenever somebody reads, of a counter without labels."""
        self._read = count

    def by_labels(self) -> Mapping[tuple[str, ...], float]:
        """The counts now, for displays."""
        return self.counts

    def forget(self, **labels: str) -> None:
        """Drop the series with these values of labels: what they named is gone."""
        for values in _matching(self.counts, self._about[2], labels):
            del self.counts[values]

    def describe(self) -> Iterable[Metric]:
        return [self._family()]

    def collect(self) -> Iterator[Metric]:
        if self._read is not None:
            self.read(self._read())
        family = self._family()
        for labels, value in list(self.counts.items()):
            family.add_metric(labels, value)
        yield family

    def _family(self) -> CounterMetricFamily:
        name, documentation, labels = self._about
        return CounterMetricFamily(name, documentation, labels=labels)

    def __repr__(self) -> str:
        return f"CounterTally({self._about[0]!r}, {dict(self.counts)})"


class GaugeTally:
    """A gauge; `set` takes the values of its labels in order."""

    def __init__(self, name: str, documentation: str, labels: Sequence[str], *, registry: CollectorRegistry) -> None:
        self._about = (name, documentation, labels)
        self._values: dict[tuple[str, ...], float] = {} if labels else {(): 0.0}
        registry.register(self)

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(self._about[2])

    def set(self, *labels: str, value: float) -> None:
        self._values[labels] = value

    def replace(self, values: Mapping[tuple[str, ...], float]) -> None:
        """Have these series and no others."""
        self._values = dict(values)

    def describe(self) -> Iterable[Metric]:
        return [self._family()]

    def collect(self) -> Iterator[Metric]:
        family = self._family()
        for labels, value in list(self._values.items()):
            family.add_metric(labels, value)
        yield family

    def _family(self) -> GaugeMetricFamily:
        name, documentation, labels = self._about
        return GaugeMetricFamily(name, documentation, labels=labels)

    def __repr__(self) -> str:
        return f"GaugeTally({self._about[0]!r}, {self._values})"


class HistogramTally:
    """A histogram; `observe` takes the values of its labels in order."""

    def __init__(
        self,
        name: str,
        documentation: str,
        labels: Sequence[str],
        *,
        buckets: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        """`buckets`: upper bounds, ascending."""
        self._about = (name, documentation, labels)
        self._bounds = [*map(float, buckets), float("inf")]
        self._values: dict[tuple[str, ...], list[float]] = {}
        """By labels: how many fell into each bucket, and last the sum."""
        if not labels:
            self._values[()] = self._nothing()
        registry.register(self)

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(self._about[2])

    @property
    def bounds(self) -> Sequence[float]:
        """Upper bounds of the buckets; the last is infinite."""
        return self._bounds

    def observe(self, value: float, *labels: str) -> None:
        values = self._values.get(labels)
        if values is None:
            values = self._values[labels] = self._nothing()
        values[bisect_left(self._bounds, value)] += 1
        values[-1] += value

    def series(self) -> Iterable[tuple[str, ...]]:
        """The values of labels seen so far."""
        return self._values

    def counts(self, **labels: str) -> list[float]:
        """How many fell into each bucket so far, of all series with these values of labels together."""
        matching = [self._values[one][:-1] for one in _matching(self._values, self._about[2], labels)]
        return [sum(column) for column in zip(*matching, strict=True)] or self._nothing()[:-1]

    def describe(self) -> Iterable[Metric]:
        return [self._family()]

    def collect(self) -> Iterator[Metric]:
        family = self._family()
        bounds = [*map(repr, self._bounds[:-1]), "+Inf"]
        for labels, values in list(self._values.items()):
            counts = itertools.accumulate(values[:-1])
            family.add_metric(labels, buckets=list(zip(bounds, counts, strict=True)), sum_value=values[-1])
        yield family

    def _nothing(self) -> list[float]:
        return [0.0] * (len(self._bounds) + 1)

    def _family(self) -> HistogramMetricFamily:
        name, documentation, labels = self._about
        return HistogramMetricFamily(name, documentation, labels=labels)

    def __repr__(self) -> str:
        return f"HistogramTally({self._about[0]!r})"


def _matching(
    values: Iterable[tuple[str, ...]], names: Sequence[str], wanted: Mapping[str, str]
) -> list[tuple[str, ...]]:
    at = [(names.index(name), value) for name, value in wanted.items()]
    return [one for one in values if all(one[index] == value for index, value in at)]
