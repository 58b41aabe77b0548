"""Whether the tokens that were counted here are those that the engine counted. Pure.

Every answer that tells its usage is compared; each comparison counts as exact, as drift with the direction of the
error, or as not compared with the reason why. Per model, so that one template that renders differently is seen.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Literal

ParityResult = Literal["exact", "drift", "not_compared"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One answer's verdict."""

    result: ParityResult
    reason: str
    """`equal`; `predicted_more` or `predicted_fewer`; or why there was nothing to compare."""
    num_tokens_off: int = 0
    """Predicted minus reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityStatistics:
    """All comparisons of one model so far."""

    model: str
    num_exact: int
    num_drift: int
    num_not_compared: int
    reasons: dict[str, int]

    @property
    def exact_ratio(self) -> float | None:
        """Exact of all compared; None before the first comparison."""
        num_compared = self.num_exact + self.num_drift
        return self.num_exact / num_compared if num_compared else None


def compare(*, predicted: int | None, why_not: str, reported: int | None) -> Comparison:
    """Compare the prompt tokens counted here with those of the answer's `usage`.

    `why_not` says why `predicted` is None.
    """
    if predicted is None:
        return Comparison(result="not_compared", reason=why_not)
    if reported is None:
        return Comparison(result="not_compared", reason="no_usage")
    off = predicted - reported
    if off == 0:
        return Comparison(result="exact", reason="equal")
    return Comparison(result="drift", reason="predicted_more" if off > 0 else "predicted_fewer", num_tokens_off=off)


class ParityLedger:
    """Counts comparisons by model. The caller keeps the set of models bounded."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[tuple[ParityResult, str]]] = {}

    def count(self, model: str, comparison: Comparison) -> None:
        """Add one comparison."""
        self._counts.setdefault(model, Counter())[comparison.result, comparison.reason] += 1

    def statistics(self) -> tuple[ParityStatistics, ...]:
        return tuple(_statistics_of(model, counts) for model, counts in sorted(self._counts.items()))

    def __repr__(self) -> str:
        return f"ParityLedger(num_models={len(self._counts)})"


def _statistics_of(model: str, counts: Counter[tuple[ParityResult, str]]) -> ParityStatistics:
    per_result: Counter[ParityResult] = Counter()
    for (result, _), count in counts.items():
        per_result[result] += count
    return ParityStatistics(
        model=model,
        num_exact=per_result["exact"],
        num_drift=per_result["drift"],
        num_not_compared=per_result["not_compared"],
        reasons={reason: count for (_, reason), count in sorted(counts.items())},
    )
