"""What every routing policy takes and gives. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

PolicyName = Literal["least_loaded"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """An endpoint that could serve the request now."""

    name: str
    num_in_flight: int


@dataclass(frozen=True, slots=True)
class Choice:
    """The index of the chosen candidate, and why it was chosen, in a few words."""

    index: int
    reason: str


class Policy(Protocol):
    """Chooses one of the candidates.

    It may keep state of its own and change it when it chooses; the caller reserves load on the chosen endpoint
    before it asks again.
    """

    name: PolicyName

    def __init__(self) -> None: ...

    def choose(self, candidates: Sequence[Candidate]) -> Choice:
        """One of `candidates`, of which there is at least one, in an order that stays the same between calls."""
