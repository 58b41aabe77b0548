"""A trace of agents at work, made up: long shared instructions, many turns, tool results in between. Pure.

Agents of a kind share their instructions and tools. A session begins with a task, and each of its turns repeats all
before it and adds the model's last answer and what a tool returned; a turn follows the one before after the answer's
time and the tool's. A session whose context is full goes on with a summary in its place. Sessions begin evenly spread.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from headrace.gateway.simulation.trace import TraceRequest

_BLOCK = 512
_MAX_CONTEXT_BLOCKS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentWork:
    """What is made up. Lengths in tokens; those not fixed are spread about the value given."""

    num_sessions: int
    turns: int = 12
    duration_s: float = 600.0
    """Time in which the sessions begin."""
    num_kinds: int = 6
    instructions: int = 8192
    task: int = 3072
    tool_result: int = 1536
    answer: int = 192
    answer_s: float = 4.0
    tool_s: float = 3.0


def agent_trace(work: AgentWork, *, uniform: Callable[[], float]) -> list[TraceRequest]:
    """The requests in order of time. `uniform` gives numbers from 0 to less than 1 by chance."""
    trace = [request for number in range(work.num_sessions) for request in _session(work, number, uniform)]
    trace.sort(key=lambda request: request.timestamp)
    return trace


def _session(work: AgentWork, number: int, uniform: Callable[[], float]) -> Iterator[TraceRequest]:
    ids = _Ids(number)
    kind = int(uniform() * work.num_kinds)
    shared = [-(kind * _MAX_CONTEXT_BLOCKS + at + 1) for at in range(work.instructions // _BLOCK)]
    context = shared + ids.take(_blocks(work.task, uniform))
    at_s = (number + uniform()) * work.duration_s / work.num_sessions
    for _ in range(max(1, round(_about(work.turns, uniform)))):
        answer = max(1, round(_about(work.answer, uniform)))
        yield TraceRequest(
            timestamp=at_s * 1e3, input_length=len(context) * _BLOCK, output_length=answer, hash_ids=list(context)
        )
        at_s += _about(work.answer_s, uniform) + _about(work.tool_s, uniform)
        context += ids.take(_blocks(work.tool_result + answer, uniform))
        if len(context) > _MAX_CONTEXT_BLOCKS:
            context = shared + ids.take(_blocks(2 * work.task, uniform))


class _Ids:
    """Numbers for the blocks that are one session's own."""

    def __init__(self, session: int) -> None:
        self._next = session << 20

    def take(self, count: int) -> list[int]:
        first, self._next = self._next, self._next + count
        return list(range(first, first + count))


def _blocks(num_tokens: float, uniform: Callable[[], float]) -> int:
    return max(1, round(_about(num_tokens, uniform) / _BLOCK))


def _about(value: float, uniform: Callable[[], float]) -> float:
    """Log-normal with `value` as its median: half as much and twice as much are each about one standard deviation."""
    normal = math.sqrt(-2 * math.log(1 - uniform())) * math.cos(2 * math.pi * uniform())
    return value * math.exp(min(2.5, max(-2.5, normal)) * math.log(2))
