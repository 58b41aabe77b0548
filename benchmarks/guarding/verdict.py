"""Whether one side is slower than the other by more than chance and a threshold. Pure."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

_MIN_FOR_QUARTILES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """What a number means."""

    name: str
    unit: str
    is_higher_better: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One measure of both sides."""

    measure: Measure
    base: float
    """Median over the rounds."""
    candidate: float
    times_worse: float
    """Median of the rounds' ratios; above 1 the candidate is worse."""
    spread: float
    """How far the middle half of the ratios lies around that, as a share of it."""
    is_worse: bool


def judge(measure: Measure, base: Sequence[float], candidate: Sequence[float], *, threshold: float) -> Verdict:
    """Of rounds, each measured of both just after one another. Worse is what is so beyond threshold and spread."""
    pairs = list(zip(base, candidate, strict=True))
    ratios = [old / new if measure.is_higher_better else new / old for old, new in pairs]
    times_worse = statistics.median(ratios)
    spread = _half_of_middle(ratios) / times_worse
    return Verdict(
        measure=measure,
        base=statistics.median(base),
        candidate=statistics.median(candidate),
        times_worse=times_worse,
        spread=spread,
        is_worse=times_worse * (1 - spread) > 1 + threshold,
    )


def _half_of_middle(values: Sequence[float]) -> float:
    """Half the distance between the quartiles; between the extremes where there are too few for those."""
    if len(values) < _MIN_FOR_QUARTILES:
        return (max(values) - min(values)) / 2
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return (third - first) / 2
