"""Which endpoint serves a request: policies, each in its own file. Pure; a new one is a new file and a line here."""

from headrace.gateway.routing.least_loaded import LeastLoaded
from headrace.gateway.routing.policy import Candidate, Choice, Draw, Policy, PolicyName, RequestFacts
from headrace.gateway.routing.power_of_two import PowerOfTwo
from headrace.gateway.routing.prefix import Prefix
from headrace.gateway.routing.prefix_hash import PrefixHash
from headrace.gateway.routing.round_robin import RoundRobin
from headrace.gateway.routing.session import Session

__all__ = [
    "POLICIES",
    "Candidate",
    "Choice",
    "Draw",
    "LeastLoaded",
    "Policy",
    "PolicyName",
    "PowerOfTwo",
    "Prefix",
    "PrefixHash",
    "RequestFacts",
    "RoundRobin",
    "Session",
]

POLICIES: dict[PolicyName, type[Policy]] = {
    "round_robin": RoundRobin,
    "least_loaded": LeastLoaded,
    "power_of_two": PowerOfTwo,
    "session": Session,
    "prefix_hash": PrefixHash,
    "prefix": Prefix,
}
