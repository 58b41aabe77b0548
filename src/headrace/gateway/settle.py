"""What is written down of a request when it is over: usage, parity, metrics, the decision."""

import time

from headrace.gateway.decisions import Decision, DecisionLog
from headrace.gateway.endpoint import Endpoint
from headrace.gateway.identify import Call, Route
from headrace.gateway.instruments import Instruments
from headrace.gateway.parity import ParityLedger, compare
from headrace.gateway.prompt_tokens import PromptCount
from headrace.gateway.proxy import Answer
from headrace.gateway.usage import Usage

_ROUTES = frozenset({*(route.value for route in Route), "/v1/models", "/health"})
_COMPARED = frozenset({Route.CHAT, Route.COMPLETIONS, Route.EMBEDDINGS})


class Ledger:
    """Counts what happened. Every call is synchronous, so that no cancellation can split it."""

    def __init__(self, instruments: Instruments, *, parity: ParityLedger, decisions: DecisionLog) -> None:
        self._instruments = instruments
        self._parity = parity
        self._decisions = decisions
        self.num_requests = 0
        self.num_completion_tokens = 0
        self.num_disconnects = 0

    def count_answer(self, path: str, status: int) -> None:
        """A request was answered with `status`."""
        self.num_requests += 1
        route = path if path in _ROUTES else "other"
        self._instruments.requests.labels(route, str(status)).inc()

    def count_disconnect(self) -> None:
        """A client left before its answer was complete."""
        self.num_disconnects += 1
        self._instruments.disconnects.inc()

    def note_overhead(self, overhead_s: float) -> None:
        """A request leaves the gateway so long after it was received."""
        self._instruments.overhead_s.observe(overhead_s)

    def note_attempt(self, call: Call, prompt: PromptCount, endpoint: Endpoint, *, reason: str, answer: Answer) -> None:
        """A request to one endpoint has ended."""
        outcome = _outcome(answer)
        self._instruments.attempts.labels(endpoint.name, outcome).inc()
        if answer.first_byte_s is not None:
            self._instruments.first_byte_s.observe(answer.first_byte_s)
        if answer.was_relayed and answer.error is not None:
            self._instruments.broken_streams.labels(endpoint.name).inc()
        if answer.error is not None and answer.can_retry:
            self._instruments.retries.inc()
        self._decisions.add(
            Decision(
                time_s=time.time(),
                request_id=call.request_id.decode("latin-1"),
                model=call.model,
                endpoint=endpoint.name,
                reason=reason,
                prompt_tokens=prompt.total,
                outcome=str(answer.status) if answer.error is None else outcome,
            )
        )

    def settle(self, call: Call, prompt: PromptCount, answer: Answer) -> None:
        """A request has its answer, whole or broken off."""
        if call.route not in _COMPARED:
            return
        self._instruments.counted.labels(prompt.why).inc()
        if answer.usage is not None:
            self._count_usage(call.model, answer.usage)
        if answer.error is None and answer.status is not None and 200 <= answer.status < 300:
            self._count_parity(call, prompt, answer.usage)

    def _count_usage(self, model: str, usage: Usage) -> None:
        num_completion_tokens = max(0, usage.completion_tokens or 0)
        self.num_completion_tokens += num_completion_tokens
        self._instruments.prompt_tokens.labels(model).inc(max(0, usage.prompt_tokens))
        self._instruments.completion_tokens.labels(model).inc(num_completion_tokens)
        self._instruments.cached_tokens.labels(model).inc(max(0, usage.cached_tokens or 0))

    def _count_parity(self, call: Call, prompt: PromptCount, usage: Usage | None) -> None:
        reported = usage.prompt_tokens if usage is not None else None
        comparison = compare(predicted=prompt.total, why_not=prompt.why, reported=reported)
        self._parity.count(call.model, comparison)
        self._instruments.parity.labels(call.model, comparison.result, comparison.reason).inc()


def _outcome(answer: Answer) -> str:
    if answer.error is not None:
        return answer.error.code or "upstream_error"
    assert answer.status is not None
    return f"{answer.status // 100}xx"
