"""Prompts that begin alike go to the same endpoint, by hash and without memory. Pure."""

from collections.abc import Sequence

from headrace.gateway.routing.least_loaded import LeastLoaded
from headrace.gateway.routing.policy import Candidate, Choice, Draw, PolicyName, RequestFacts
from headrace.gateway.routing.rendezvous import first_with_room


class PrefixHash:
    """By rendezvous hash of the prompt's first few hundred tokens, passing over endpoints that have more than their
    share of the requests in flight. Without a prompt the least loaded."""

    name: PolicyName = "prefix_hash"

    def __init__(self, *, draw: Draw) -> None:
        self._without = LeastLoaded(draw=draw)

    def choose(self, candidates: Sequence[Candidate], facts: RequestFacts) -> Choice:
        if facts.head_key is None:
            choice = self._without.choose(candidates, facts)
            return Choice(choice.index, f"no prompt; {choice.reason}")
        index, rank = first_with_room(facts.head_key, candidates)
        return Choice(index, "hash of the first tokens" + (f"; {rank} before it had their share" if rank else ""))

    def __repr__(self) -> str:
        return "PrefixHash()"
