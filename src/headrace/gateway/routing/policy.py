"""What every routing policy takes and gives. Pure."""

from collections.abc import Callable, Sequence
from typing import Literal, Protocol, TypeAlias

import msgspec

PolicyName = Literal["round_robin", "least_loaded", "power_of_two", "session", "prefix_hash", "prefix"]

Draw: TypeAlias = Callable[[int], int]
"""A random number from 0 to one less than the argument."""


class Candidate(Protocol):
    """An endpoint that could serve the request now, as far as a policy looks at it."""

    @property
    def name(self) -> str: ...

    @property
    def num_in_flight(self) -> int: ...

    @property
    def num_waiting_tokens(self) -> int:
        """New prompt tokens of requests sent there that have no answer yet."""
        ...

    @property
    def weight(self) -> float:
        """Its power beside the others'."""
        ...


class RequestFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the request. Keys are numbers that every gateway computes alike."""

    num_tokens: int = 1
    """Of the prompt; estimated from its text where it could not be tokenized."""
    num_cached_tokens: Sequence[int] = ()
    """For each candidate, how many of these it need not compute; never all, since engines always compute the last one.
    Empty where nobody has any."""
    head_key: int | None = None
    """Names the prompt's first few hundred tokens; None without a prompt."""
    novel_key: int | None = None
    """Names the prompt as far as its first block that no candidate has."""
    session_key: int | None = None
    """Names the session or user that the client gave."""


class Choice(msgspec.Struct, frozen=True):
    """The index of the chosen candidate, and why it was chosen, in a few words."""

    index: int
    reason: str


class Policy(Protocol):
    """Chooses one of the candidates.

    It may keep state of its own and change it when it chooses; the caller reserves load on the chosen endpoint
    before it asks again.
    """

    name: PolicyName

    def __init__(self, *, draw: Draw) -> None: ...

    def choose(self, candidates: Sequence[Candidate], facts: RequestFacts) -> Choice:
        """One of `candidates`, of which there is at least one, in an order that stays the same between calls."""
