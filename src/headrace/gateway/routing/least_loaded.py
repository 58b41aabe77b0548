"""The endpoint with the fewest requests in flight; equals take turns. Pure."""

from collections.abc import Sequence

from headrace.gateway.routing.policy import Candidate, Choice, Draw, PolicyName, RequestFacts
from headrace.gateway.routing.turns import Turns


class LeastLoaded:
    """Fewest requests in flight for its weight. Ties rotate: the first of the equals after the one chosen last."""

    name: PolicyName = "least_loaded"

    def __init__(self, *, draw: Draw) -> None:
        del draw
        self._turns = Turns()

    def choose(self, candidates: Sequence[Candidate], facts: RequestFacts) -> Choice:
        del facts
        loads = [candidate.num_in_flight / candidate.weight for candidate in candidates]
        fewest = min(loads)
        index = self._turns.take(candidates, [index for index, load in enumerate(loads) if load == fewest])
        if len(candidates) == 1:
            return Choice(index, "only endpoint")
        return Choice(index, f"{candidates[index].num_in_flight} in flight, fewest of {len(candidates)}")

    def __repr__(self) -> str:
        return f"LeastLoaded({self._turns!r})"
