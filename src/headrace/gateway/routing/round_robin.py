"""One endpoint after the other. Pure."""

from collections.abc import Sequence

from headrace.gateway.routing.policy import Candidate, Choice, Draw, PolicyName, RequestFacts
from headrace.gateway.routing.turns import Turns


class RoundRobin:
    """The endpoint after the one chosen last, whatever its load or weight."""

    name: PolicyName = "round_robin"

    def __init__(self, *, draw: Draw) -> None:
        del draw
        self._turns = Turns()

    def choose(self, candidates: Sequence[Candidate], facts: RequestFacts) -> Choice:
        del facts
        index = self._turns.take(candidates, range(len(candidates)))
        return Choice(index, "only endpoint" if len(candidates) == 1 else f"next of {len(candidates)}")

    def __repr__(self) -> str:
        return f"RoundRobin({self._turns!r})"
