"""The latest routing decisions, for people to look at."""

from collections import deque

import msgspec

_NUM_KEPT = 20


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """One choice of an endpoint and how it went."""

    time_s: float
    """Seconds since the epoch."""
    request_id: str
    model: str
    endpoint: str
    reason: str
    prompt_tokens: int | None
    outcome: str
    """The status as text, or what went wrong."""


class DecisionLog:
    """Keeps the last twenty."""

    def __init__(self) -> None:
        self._decisions: deque[Decision] = deque(maxlen=_NUM_KEPT)

    def add(self, decision: Decision) -> None:
        self._decisions.append(decision)

    def latest(self) -> list[Decision]:
        """The youngest first."""
        return list(reversed(self._decisions))

    def __repr__(self) -> str:
        return f"DecisionLog(num_kept={len(self._decisions)})"
