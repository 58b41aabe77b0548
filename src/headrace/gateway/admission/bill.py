"""What a request has used in the end, and what that costs. Pure."""

from typing import Literal

import msgspec

from headrace.gateway.admission.prices import Price
from headrace.gateway.usage.usage import Usage


class Bill(msgspec.Struct, frozen=True, kw_only=True):
    """What a request has used, and what that costs."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    cost: int = 0
    """Picodollars."""
    source: Literal["usage", "estimate", "nothing"] = "nothing"
    """Whether the engine said so, or it is the gateway's estimate (an answer that broke off says nothing), or the
    request used nothing, being refused or failed."""

    @property
    def num_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


NOTHING = Bill()


def bill_of(usage: Usage, price: Price | None) -> Bill:
    """What an engine's `usage` comes to. A number below 0 counts as 0."""
    return _bill(usage.prompt_tokens, usage.cached_tokens or 0, usage.completion_tokens or 0, price, source="usage")


def estimated_bill(*, prompt_tokens: int, completion_tokens: int, price: Price | None) -> Bill:
    """What an answer comes to that tells nothing of its usage."""
    return _bill(prompt_tokens, 0, completion_tokens, price, source="estimate")


def _bill(
    prompt_tokens: int,
    cached_tokens: int,
    completion_tokens: int,
    price: Price | None,
    *,
    source: Literal["usage", "estimate"],
) -> Bill:
    if prompt_tokens < 0:
        prompt_tokens = 0
    if cached_tokens < 0:
        cached_tokens = 0
    if cached_tokens > prompt_tokens:
        cached_tokens = prompt_tokens
    if completion_tokens < 0:
        completion_tokens = 0
    cost = 0
    if price is not None:
        cost = price.cost_of(
            prompt_tokens=prompt_tokens, cached_tokens=cached_tokens, completion_tokens=completion_tokens
        )
    return Bill(
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
        completion_tokens=completion_tokens,
        cost=cost,
        source=source,
    )
