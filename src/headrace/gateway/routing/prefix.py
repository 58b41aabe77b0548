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
from headrace.gateway.routing.rendezvous import ranked

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
        cached = [candidate.num_cached_tokens for candidate in candidates]
        most = max(cached)
        is_cold = most == min(cached)
        num_to_come = 0 if is_cold else _NUM_TO_COME
        costs = [_cost(candidate, num_tokens=facts.num_tokens, num_to_come=num_to_come) for candidate in candidates]
        least = min(costs)
        cheapest = [index for index, cost in enumerate(costs) if cost == least]
        index = cheapest[0] if len(cheapest) == 1 else _first_by_hash(candidates, cheapest, facts.novel_key)
        if not is_cold:
            return Choice(index, _reason(candidates, index))
        what = f"all hold {most} tokens" if most else "cold"
        return Choice(index, f"{what}, least busy" if len(cheapest) < len(candidates) else f"{what}, by hash")

    def __repr__(self) -> str:
        return "Prefix()"


def _cost(candidate: Candidate, *, num_tokens: int, num_to_come: int) -> float:
    num_new = max(1, num_tokens - candidate.num_cached_tokens)  # engines always compute one at least
    return (num_new * (candidate.num_in_flight + num_to_come) + candidate.num_waiting_tokens) / candidate.weight


def _first_by_hash(candidates: Sequence[Candidate], indices: Sequence[int], key: int) -> int:
    return indices[ranked(key, [candidates[index] for index in indices])[0]]


def _reason(candidates: Sequence[Candidate], index: int) -> str:
    chosen = candidates[index]
    holder = max(candidates, key=lambda candidate: candidate.num_cached_tokens)
    if chosen.num_cached_tokens == holder.num_cached_tokens:
        return f"holds {chosen.num_cached_tokens} tokens, {chosen.num_in_flight} in flight"
    return (
        f"spill: holds {chosen.num_cached_tokens} tokens, {chosen.num_in_flight} in flight; "
        f"{holder.name} holds {holder.num_cached_tokens} with {holder.num_in_flight} in flight"
    )
