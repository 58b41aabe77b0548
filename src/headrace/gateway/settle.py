"""What is written down of a request when it is over: usage, parity, metrics, the decision."""

import time

from headrace.errors import HeadraceError
from headrace.gateway.admission.bill import Bill
from headrace.gateway.admission.prices import PICO
from headrace.gateway.choose import Chosen
from headrace.gateway.decisions import Decision, DecisionLog, Trace
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

    def on_refused(self, error: HeadraceError) -> None:
        """Admission kept a request out."""
        self._instruments.refusals.labels(error.code or "other").inc()

    def on_settled(self, model: str, bill: Bill) -> None:
        """A request that was admitted has its bill."""
        self._instruments.bills.labels(bill.source).inc()
        if bill.cost:
            self._instruments.cost.labels(model).inc(bill.cost / PICO)

    def note_overhead(self, overhead_s: float) -> None:
        """A request leaves the gateway so long after it was received."""
        self._instruments.overhead_s.observe(overhead_s)

    def note_attempt(self, call: Call, prompt: PromptCount, chosen: Chosen, *, answer: Answer) -> None:
        """A request to one endpoint has ended."""
        endpoint = chosen.endpoint
        outcome = _outcome(answer)
        self._instruments.attempts.labels(endpoint.name, outcome).inc()
        if answer.first_byte_s is not None:
            self._instruments.first_byte_s.observe(answer.first_byte_s)
        if answer.was_relayed and answer.error is not None:
            self._instruments.broken_streams.labels(endpoint.name).inc()
        if answer.error is not None and answer.can_retry:
            self._instruments.retries.inc()
        if chosen.routed.num_cached_tokens is not None and answer.usage is not None and answer.error is None:
            self._count_cached(call.model, chosen.routed.num_cached_tokens, answer.usage)
        self._decisions.add(
            Decision(
                time_s=time.time(),
                request_id=call.request_id.decode("latin-1"),
                model=call.model,
                endpoint=endpoint.name,
                reason=chosen.reason,
                prompt_tokens=prompt.total,
                cached_tokens_predicted=chosen.routed.num_cached_tokens,
                cached_tokens=answer.usage.cached_tokens if answer.usage is not None else None,
                outcome=str(answer.status) if answer.error is None else outcome,
            ),
            self._trace(chosen, answer),
        )

    def _trace(self, chosen: Chosen, answer: Answer) -> Trace | None:
        has_ended = answer.error is None or answer.was_relayed  # else the request goes to another endpoint
        if not has_ended or not self._decisions.wants_trace():
            return None
        num_tokens = answer.usage.completion_tokens if answer.usage is not None else None
        return Trace(policy=chosen.policy, output_length=num_tokens or 0, hash_ids=chosen.prompt.trace_ids())

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

    def _count_cached(self, model: str, predicted: int, usage: Usage) -> None:
        comparison = compare(predicted=predicted, why_not="", reported=usage.cached_tokens)
        self._instruments.cached_parity.labels(model, comparison.reason).inc()

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
