"""Which endpoint serves a request: policies, each in its own file. Pure; a new one is a new file and a line here."""

from headrace.gateway.routing.least_loaded import LeastLoaded
from headrace.gateway.routing.policy import Candidate, Choice, Policy, PolicyName

__all__ = ["POLICIES", "Candidate", "Choice", "LeastLoaded", "Policy", "PolicyName"]

POLICIES: dict[PolicyName, type[Policy]] = {"least_loaded": LeastLoaded}
