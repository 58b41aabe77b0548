"""What each key has used of each model since the gateway started. Pure; sums of whole numbers, so exact."""

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.gateway.admission.bill import Bill


@dataclass(slots=True, kw_only=True)
class ModelTotals:
    """One key's use of one model."""

    num_requests: int = 0
    num_estimated: int = 0
    """Of these, the ones whose usage the engine did not tell."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    cost: int = 0
    """Picodollars."""

    def add(self, bill: Bill) -> None:
        """Count one request's bill."""
        self.num_requests += 1
        if bill.source == "estimate":
            self.num_estimated += 1
        self.prompt_tokens += bill.prompt_tokens
        self.cached_tokens += bill.cached_tokens
        self.completion_tokens += bill.completion_tokens
        self.cost += bill.cost

    def merge(self, other: "ModelTotals") -> None:
        """Count all of `other` as well."""
        for name in FIELDS:
            setattr(self, name, getattr(self, name) + getattr(other, name))


FIELDS = tuple(ModelTotals.__slots__)
"""The numbers of a ModelTotals by name."""


class UsageTotals:
    """All keys. Bounded by the keys that there are and the models that the fleet serves."""

    def __init__(self) -> None:
        self._totals: dict[str, dict[str, ModelTotals]] = {}

    def add(self, key: str, model: str, bill: Bill) -> None:
        """Count one settled request."""
        try:
            totals = self._totals[key][model]
        except KeyError:
            totals = self._totals.setdefault(key, {})[model] = ModelTotals()
        totals.add(bill)

    def of(self, key: str) -> Mapping[str, ModelTotals]:
        """By model."""
        return self._totals.get(key, {})

    def names(self) -> tuple[str, ...]:
        """All that have used anything."""
        return tuple(self._totals)

    def forget_except(self, names: Mapping[str, object]) -> None:
        """Drop keys that exist no more."""
        self._totals = {name: totals for name, totals in self._totals.items() if name in names}

    def __repr__(self) -> str:
        return f"UsageTotals(num_keys={len(self._totals)})"


def sum_of(totals: Mapping[str, ModelTotals]) -> ModelTotals:
    """All models together."""
    total = ModelTotals()
    for one in totals.values():
        total.merge(one)
    return total
