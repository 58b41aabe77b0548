"""Routing policies over a recorded trace, with simulated engines and the gateway's own router."""

from headrace.gateway.simulation.agents import AgentWork, agent_trace
from headrace.gateway.simulation.engine import EngineModel
from headrace.gateway.simulation.run import Ceilings, Knowledge, Outcome, Setup, ceilings_of, simulate
from headrace.gateway.simulation.trace import TraceRequest, read_trace

__all__ = [
    "AgentWork",
    "Ceilings",
    "EngineModel",
    "Knowledge",
    "Outcome",
    "Setup",
    "TraceRequest",
    "agent_trace",
    "ceilings_of",
    "read_trace",
    "simulate",
]
