"""Routing policies over a recorded trace, with simulated engines and the gateway's own router."""

from headrace.gateway.simulation.engine import EngineModel
from headrace.gateway.simulation.run import Knowledge, Outcome, Setup, simulate
from headrace.gateway.simulation.trace import TraceRequest, read_trace

__all__ = ["EngineModel", "Knowledge", "Outcome", "Setup", "TraceRequest", "read_trace", "simulate"]
