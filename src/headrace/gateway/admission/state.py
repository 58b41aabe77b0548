"""What keeps count of the keys' limits: in this process, or for several gateways together."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec

from headrace.gateway.admission.bill import Bill
from headrace.gateway.admission.budget import Window
from headrace.gateway.admission.keys import ApiKey
from headrace.gateway.admission.limits import Hold, KeyLimits, Levels
from headrace.gateway.admission.token_bucket import UNITS
from headrace.gateway.admission.usage_totals import ModelTotals


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """Leave for one request, to be settled exactly once."""

    key: ApiKey
    hold: Hold
    levels: Levels
    """With this request."""
    lease: str | None = None
    """Its name where gateways count together; None when only this one counts it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one key has used, and how far its limits."""

    levels: Levels
    windows: tuple[Window, ...]
    """Of the key's budgets, in their order."""
    totals: Mapping[str, ModelTotals]
    """By model."""


class LimitState(Protocol):
    """Counts requests, tokens and money by key."""

    @property
    def why_local(self) -> str | None:
        """Why gateways that should count together do not now; None when all is as it should be."""

    async def take(self, key: ApiKey, hold: Hold) -> Grant:
        """Hold what a request may use. Raises LimitError; cancelled, or raising, it holds nothing."""

    def take_now(self, key: ApiKey, hold: Hold) -> Grant | None:
        """What `take` gives where nobody must be asked; None, with nothing held, where it must be awaited."""

    def settle(self, grant: Grant, model: str, bill: Bill) -> None:
        """The request has ended and used this. Synchronous, so that no cancellation can lose it."""

    async def report(self, key: ApiKey) -> Report:
        """The use of `key`, with all that was settled here before."""

    def forget_except(self, names: Mapping[str, object]) -> None:
        """Drop what is kept of keys that exist no more and have nothing under way."""

    async def start(self) -> None:
        """Begin; to be called once in the running loop."""

    async def aclose(self) -> None:
        """End, with everything settled as far as that is possible. Idempotent."""


def levels_with(levels: Levels, hold: Hold, limits: KeyLimits) -> Levels:
    """The levels before `hold` was taken, with it."""
    return Levels(
        num_open=levels.num_open + 1,
        held_tokens=levels.held_tokens + hold.num_tokens,
        held_cost=levels.held_cost + hold.cost,
        requests_debt=levels.requests_debt + (UNITS if limits.requests_per_minute is not None else 0),
        tokens_debt=levels.tokens_debt,
        spent=levels.spent,
    )
