"""What a key may do, and whether one request more is within it. Pure.

A request is held before it goes on: its tokens and its cost at their most, from the exact prompt and the completion
it asks for. When it ends, the hold goes and what its `usage` says is taken. So a limit is never exceeded by requests
that run at the same time, and a request that asks for more than it uses costs what it used.
"""

from dataclasses import dataclass
from typing import Literal

import msgspec

from headrace.gateway.admission.budget import Budget
from headrace.gateway.admission.token_bucket import UNITS, fits, wait_s

LimitName = Literal["concurrent_requests", "requests_per_minute", "tokens_per_minute", "budget"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLimits:
    """The limits of one key; None leaves one out."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    """Prompt and completion together."""
    concurrent_requests: int | None = None
    """Under way at a time, those that wait here included."""
    budgets: tuple[Budget, ...] = ()


NO_LIMITS = KeyLimits()


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """The most that one request can use."""

    num_tokens: int = 0
    completion_tokens: int = 0
    """Of these, the ones that the model may write."""
    cost: int = 0
    """Picodollars."""

    @property
    def prompt_tokens(self) -> int:
        return self.num_tokens - self.completion_tokens


class Levels(msgspec.Struct, frozen=True, kw_only=True):
    """How far a key has used up its limits at one moment."""

    num_open: int = 0
    """Requests that are held now."""
    held_tokens: int = 0
    held_cost: int = 0
    requests_debt: int = 0
    tokens_debt: int = 0
    """As `token_bucket` counts them."""
    spent: tuple[int, ...] = ()
    """Picodollars in the present window of each budget, in the order of the limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Which limit a request does not fit, and when it might."""

    limit: LimitName
    retry_after_s: float | None = None
    """None: not by waiting, or no time can be named."""
    budget: Budget | None = None
    is_hopeless: bool = False
    """The request alone is more than the limit."""


def is_within(limits: KeyLimits, levels: Levels) -> bool:
    """Whether `levels`, with the request in question, are over no limit. That is what `refusal` finds out too, which
    tells more and is asked only when a request is refused."""
    if limits.concurrent_requests is not None and levels.num_open > limits.concurrent_requests:
        return False
    if limits.requests_per_minute is not None and levels.requests_debt > limits.requests_per_minute * UNITS:
        return False
    rate = limits.tokens_per_minute
    if rate is not None and levels.tokens_debt > (rate - levels.held_tokens) * UNITS:
        return False
    if not limits.budgets:
        return True
    held_cost = levels.held_cost
    return not [
        1 for budget, spent in zip(limits.budgets, levels.spent, strict=True) if spent + held_cost > budget.amount
    ]


def hopeless(limits: KeyLimits, hold: Hold) -> Refusal | None:
    """The limit that `hold` is over even when nothing else has been used."""
    if limits.tokens_per_minute is not None and hold.num_tokens > limits.tokens_per_minute:
        return Refusal(limit="tokens_per_minute", is_hopeless=True)
    for budget in limits.budgets:
        if hold.cost > budget.amount:
            return Refusal(limit="budget", budget=budget, is_hopeless=True)
    return None


def refusal(limits: KeyLimits, hold: Hold, levels: Levels) -> Refusal | None:
    """The first limit that `hold` does not fit at `levels`, those without it; None when it may go on."""
    if limits.concurrent_requests is not None and levels.num_open >= limits.concurrent_requests:
        return Refusal(limit="concurrent_requests", retry_after_s=1.0)
    rate = limits.requests_per_minute
    if rate is not None and not fits(levels.requests_debt, 1, per_minute=rate):
        retry_s = wait_s(levels.requests_debt, 1, per_minute=rate)
        return Refusal(limit="requests_per_minute", retry_after_s=retry_s)
    rate = limits.tokens_per_minute
    amount = levels.held_tokens + hold.num_tokens
    if rate is not None and not fits(levels.tokens_debt, amount, per_minute=rate):
        retry_s = max(1.0, wait_s(levels.tokens_debt, amount, per_minute=rate))
        return Refusal(limit="tokens_per_minute", retry_after_s=retry_s)
    for budget, spent in zip(limits.budgets, levels.spent, strict=True):
        if spent + levels.held_cost + hold.cost > budget.amount:
            return Refusal(limit="budget", budget=budget)
    return None
