"""The endpoint with the fewest requests in flight; equals take turns. Pure."""

from collections.abc import Sequence

from headrace.gateway.routing.policy import Candidate, Choice, PolicyName


class LeastLoaded:
    """Fewest requests in flight. Ties rotate: the first of the equals after the one that was chosen last."""

    name: PolicyName = "least_loaded"

    def __init__(self) -> None:
        self._last = ""

    def choose(self, candidates: Sequence[Candidate]) -> Choice:
        fewest = min(candidate.num_in_flight for candidate in candidates)
        equals = [index for index, candidate in enumerate(candidates) if candidate.num_in_flight == fewest]
        last = next((index for index, candidate in enumerate(candidates) if candidate.name == self._last), None)
        after = [index for index in equals if last is not None and index > last]
        index = after[0] if after else equals[0]
        self._last = candidates[index].name
        if len(candidates) == 1:
            return Choice(index, "only endpoint")
        return Choice(index, f"{fewest} in flight, fewest of {len(candidates)}")

    def __repr__(self) -> str:
        return f"LeastLoaded(last={self._last!r})"
