"""The less loaded of two endpoints drawn at random. Pure."""

from collections.abc import Sequence

from headrace.gateway.routing.policy import Candidate, Choice, Draw, PolicyName, RequestFacts


class PowerOfTwo:
    """Two different candidates are drawn; the one with fewer requests in flight for its weight is chosen, of equals the
    first drawn. Gateways that do not know each other's requests do not all run to the same endpoint."""

    name: PolicyName = "power_of_two"

    def __init__(self, *, draw: Draw) -> None:
        self._draw = draw

    def choose(self, candidates: Sequence[Candidate], facts: RequestFacts) -> Choice:
        del facts
        if len(candidates) == 1:
            return Choice(0, "only endpoint")
        first = self._draw(len(candidates))
        second = self._draw(len(candidates) - 1)
        second += second >= first
        one, other = candidates[first], candidates[second]
        is_other_freer = other.num_in_flight / other.weight < one.num_in_flight / one.weight
        return Choice(
            second if is_other_freer else first,
            f"{min(one.num_in_flight, other.num_in_flight)} in flight, fewer of two drawn from {len(candidates)}"
            if one.weight == other.weight
            else f"less loaded of two drawn from {len(candidates)}",
        )

    def __repr__(self) -> str:
        return "PowerOfTwo()"
