"""A session stays with its endpoint. Pure."""

from collections.abc import Sequence

from headrace.gateway.routing.least_loaded import LeastLoaded
from headrace.gateway.routing.policy import Candidate, Choice, Draw, PolicyName, RequestFacts
from headrace.gateway.routing.rendezvous import first


class Session:
    """By rendezvous hash of the session that the client names, load or no load; without a name the least loaded."""

    name: PolicyName = "session"

    def __init__(self, *, draw: Draw) -> None:
        self._without = LeastLoaded(draw=draw)

    def choose(self, candidates: Sequence[Candidate], facts: RequestFacts) -> Choice:
        if facts.session_key is None:
            choice = self._without.choose(candidates, facts)
            return Choice(choice.index, f"no session; {choice.reason}")
        return Choice(first(facts.session_key, candidates), "session")

    def __repr__(self) -> str:
        return "Session()"
