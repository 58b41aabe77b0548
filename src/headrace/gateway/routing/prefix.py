"""The endpoint where the request costs all requests together the least time until their answers begin. Pure.

Theory. A request waits for the tokens that wait at the endpoint before it. The tokens that it makes the endpoint
compute (its own that are not cached there) hold up the requests that are in flight there, and those that will come
while the endpoint is busy; so the cost of an endpoint is

    new tokens x (requests in flight + those to come) + waiting tokens

so a holder of the prefix is passed over exactly when another computes the prompt anew at less cost, request by request,
with nothing for an operator to tune. A constant stands for those to come: with 1, `headrace replay` loses 2 to 6 points
of hit rate on Mooncake's traces and gains no time.

Rule: where all have the same of the prompt (nothing, or a preamble that everybody knows), its tokens cost the same
everywhere and only load is compared. Equals, as in a fleet that is not busy, are ordered by rendezvous hash of the
first block that nobody has, so that gateways that know nothing of each other send what begins alike to the same place.
"""

from collections.abc import Sequence

from headrace.gateway.routing.least_loaded import LeastLoaded
from headrace.gateway.routing.policy import Candidate, Choice, Draw, PolicyName, RequestFacts
from headrace.gateway.routing.rendezvous import first

_NUM_TO_COME = 8


class Prefix:
    """See the module. Without a prompt the least loaded."""

    name: PolicyName = "prefix"

    def __init__(self, *, draw: Draw) -> None:
        self._without = LeastLoaded(draw=draw)

    def choose(self, candidates: Sequence[Candidate], facts: RequestFacts) -> Choice:
        if len(candidates) == 1:
            return Choice(0, "only endpoint")
        if facts.novel_key is None:
            choice = self._without.choose(candidates, facts)
            return Choice(choice.index, f"no prompt; {choice.reason}")
        cached = facts.num_cached_tokens
        most = max(cached, default=0)
        if cached and most != min(cached):
            costs = _costs(candidates, cached, num_tokens=facts.num_tokens)
            index = _cheapest(candidates, costs, key=facts.novel_key)
            return Choice(index, _reason(candidates, cached, index))
        costs = _costs_of_equals(candidates, num_new=facts.num_tokens - most)
        index = _cheapest(candidates, costs, key=facts.novel_key)
        what = f"all hold {most} tokens" if most else "cold"
        return Choice(index, f"{what}, by hash" if costs.count(costs[index]) == len(costs) else f"{what}, least busy")

    def __repr__(self) -> str:
        return "Prefix()"


def _costs(candidates: Sequence[Candidate], cached: Sequence[int], *, num_tokens: int) -> list[float]:
    return [
        ((num_tokens - num_cached) * (one.num_in_flight + _NUM_TO_COME) + one.num_waiting_tokens) / one.weight
        for one, num_cached in zip(candidates, cached, strict=True)
    ]


def _costs_of_equals(candidates: Sequence[Candidate], *, num_new: int) -> list[float]:
    return [(num_new * one.num_in_flight + one.num_waiting_tokens) / one.weight for one in candidates]


def _cheapest(candidates: Sequence[Candidate], costs: Sequence[float], *, key: int) -> int:
    """The index of the least cost; among equals the first in the key's order."""
    least = min(costs)
    num_equal = costs.count(least)
    if num_equal == 1:
        return costs.index(least)
    if num_equal == len(costs):
        return first(key, candidates)
    equals = [index for index, cost in enumerate(costs) if cost == least]
    return equals[first(key, [candidates[index] for index in equals])]


def _reason(candidates: Sequence[Candidate], cached: Sequence[int], index: int) -> str:
    num_held, num_in_flight, most = cached[index], candidates[index].num_in_flight, max(cached)
    if num_held == most:
        return f"holds {num_held} tokens, {num_in_flight} in flight"
    holder = candidates[cached.index(most)]
    return (
        f"spill: holds {num_held} tokens, {num_in_flight} in flight; "
        f"{holder.name} holds {most} with {holder.num_in_flight} in flight"
    )
