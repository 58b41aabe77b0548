"""Routing decisions: the latest ones for people to look at, a sample of them for a file."""

from collections import deque
from typing import Protocol

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
    cached_tokens_predicted: int | None = None
    """Of these, how many the endpoint was thought to have in its cache."""
    cached_tokens: int | None = None
    """How many it said it had."""
    token_in: str = ""
    """`yes`, or `no` and why the endpoint got text."""
    outcome: str
    """The status as text, or what went wrong."""


class Made(msgspec.Struct, frozen=True, gc=False):
    """A decision in the words at hand. One is made for every request, a Decision only for who looks at it."""

    time_s: float
    request_id: bytes
    model: str
    endpoint: str
    reason: str
    prompt_tokens: int | None
    cached_tokens_predicted: int | None
    cached_tokens: int | None
    why_text: str | None
    """None: the prompt went as token ids."""
    outcome: str | int

    def told(self) -> Decision:
        """As it is shown."""
        return Decision(
            time_s=self.time_s,
            request_id=self.request_id.decode("latin-1"),
            model=self.model,
            endpoint=self.endpoint,
            reason=self.reason,
            prompt_tokens=self.prompt_tokens,
            cached_tokens_predicted=self.cached_tokens_predicted,
            cached_tokens=self.cached_tokens,
            token_in="yes" if self.why_text is None else f"no; {self.why_text}",
            outcome=str(self.outcome),
        )


class TracedDecision(Decision, frozen=True, kw_only=True):
    """One line of the file: the decision, and the request in the form of traces, for `headrace replay`."""

    policy: str
    timestamp: int
    """Milliseconds since the epoch."""
    input_length: int
    output_length: int
    hash_ids: list[int]
    """One for each 512 tokens; none where they are not known."""


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """What a line of the file tells of a request beside the decision."""

    policy: str
    output_length: int
    hash_ids: list[int]


class DecisionSink(Protocol):
    """Takes a sample of the decisions."""

    def wants_next(self) -> bool:
        """Whether the next decision is in the sample. To be asked once for each."""
        ...

    def add(self, decision: TracedDecision) -> None: ...


class DecisionLog:
    """Keeps the last twenty, and hands a sample on to `sink`."""

    def __init__(self, sink: DecisionSink | None = None) -> None:
        self._decisions: deque[Made] = deque(maxlen=_NUM_KEPT)
        self._sink = sink
        self.add = self._decisions.append
        """Keep one more."""

    def wants_trace(self) -> bool:
        """Whether the next decision is to be traced; to be asked once for each that ended a request."""
        return self._sink is not None and self._sink.wants_next()

    def trace(self, decision: Made, trace: Trace) -> None:
        """Hand a decision on to the sink, which wanted it."""
        if self._sink is not None:
            self._sink.add(_traced(decision.told(), trace))

    def latest(self) -> list[Decision]:
        """The youngest first."""
        return [decision.told() for decision in reversed(self._decisions)]

    def __repr__(self) -> str:
        return f"DecisionLog(num_kept={len(self._decisions)})"


def _traced(decision: Decision, trace: Trace) -> TracedDecision:
    return TracedDecision(
        **msgspec.structs.asdict(decision),
        policy=trace.policy,
        timestamp=round(decision.time_s * 1e3),
        input_length=decision.prompt_tokens or 0,
        output_length=trace.output_length,
        hash_ids=trace.hash_ids,
    )
