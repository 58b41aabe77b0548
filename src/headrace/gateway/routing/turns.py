"""Whose turn it is among equals. Pure."""

from collections.abc import Sequence

from headrace.gateway.routing.policy import Candidate


class Turns:
    """Remembers who was chosen last; the next of the allowed after it in order is chosen now."""

    def __init__(self) -> None:
        self._last = ""

    def take(self, candidates: Sequence[Candidate], allowed: Sequence[int]) -> int:
        """One of the indices `allowed`, which are in order and at least one."""
        last = next((index for index, candidate in enumerate(candidates) if candidate.name == self._last), None)
        index = next((index for index in allowed if last is not None and index > last), allowed[0])
        self._last = candidates[index].name
        return index

    def __repr__(self) -> str:
        return f"Turns(last={self._last!r})"
