"""What is written down of a request when it is over: usage, parity, metrics, the decision."""

import time

from headrace.errors import HeadraceError
from headrace.gateway.admission.bill import Bill
from headrace.gateway.admission.prices import PICO
from headrace.gateway.choose import Chosen
from headrace.gateway.identify import Call
from headrace.gateway.parity.check import ParityCheck
from headrace.gateway.prompt.tokens import PromptCount
from headrace.gateway.proxy import Answer
from headrace.gateway.routes import ROUTES
from headrace.gateway.telemetry.decisions import DecisionLog, Made, Trace
from headrace.gateway.telemetry.instruments import Instruments
from headrace.gateway.token_in.sending import Sending
from headrace.gateway.usage.usage import Usage

_ROUTES = frozenset({*ROUTES, "/v1/models", "/health"})


class Ledger:
    """Counts what happened. Every call is synchronous, so that no cancellation can split it."""

    def __init__(self, instruments: Instruments, *, parity: ParityCheck, decisions: DecisionLog) -> None:
        self._instruments = instruments
        self._parity = parity
        self._decisions = decisions
        self.note_overhead = instruments.overhead_s.observe
        """A request leaves the gateway so many seconds after it was received."""
        self.num_requests = 0
        self.num_completion_tokens = 0
        self.num_disconnects = 0

    def count_answer(self, path: str, status: int, *, took_s: float) -> None:
        """A request was answered with `status`, so long after it was received."""
        self.num_requests += 1
        route = path if path in _ROUTES else "other"
        self._instruments.requests.counts[route, str(status)] += 1
        self._instruments.request_s.observe(took_s)

    def count_disconnect(self) -> None:
        """A client left before its answer was complete."""
        self.num_disconnects += 1
        self._instruments.disconnects.add()

    def count_retry(self) -> None:
        """A request is sent once more."""
        self._instruments.retries.add()

    def count_retry_refused(self) -> None:
        """A request could be sent once more, and is not: the budget is spent."""
        self._instruments.retries_refused.add()

    def on_refused(self, error: HeadraceError) -> None:
        """Admission kept a request out."""
        self._instruments.refusals.add(error.code or "other")

    def on_settled(self, model: str, bill: Bill) -> None:
        """A request that was admitted has its bill."""
        self._instruments.bills.counts[(bill.source,)] += 1
        if bill.cost:
            self._instruments.cost.counts[(model,)] += bill.cost / PICO

    def note_attempt(
        self, call: Call, prompt: PromptCount, chosen: Chosen, sending: Sending, *, answer: Answer
    ) -> None:
        """A request to one endpoint has ended."""
        instruments, endpoint, usage = self._instruments, chosen.endpoint, answer.usage
        cached_tokens = usage.cached_tokens if usage is not None else None
        outcome = _outcome(answer)
        instruments.attempts.counts[endpoint.name, outcome] += 1
        if answer.first_byte_s is not None:
            instruments.first_byte_s.observe(answer.first_byte_s)
        if answer.was_relayed and answer.error is not None:
            instruments.broken_streams.add(endpoint.name)
        if usage is not None and cached_tokens is not None:
            self._count_hits(endpoint.name, usage.prompt_tokens, cached_tokens)
        if not call.route.traits.is_free:
            self._parity.note(call, prompt, chosen, sending, answer=answer)
        decision = Made(
            time.time(),
            call.request_id,
            call.model,
            endpoint.name,
            chosen.reason,
            prompt.total,
            chosen.routed.num_cached_tokens,
            cached_tokens,
            sending.why_text,
            answer.status if answer.error is None and answer.status is not None else outcome,
        )
        self._decisions.add(decision)
        if (answer.error is None or answer.was_relayed) and self._decisions.wants_trace():
            num_tokens = usage.completion_tokens if usage is not None else None
            self._trace(decision, chosen, num_tokens or 0)

    def _trace(self, decision: Made, chosen: Chosen, num_tokens: int) -> None:
        """The request has ended: others go to another endpoint, and are traced there."""
        trace = Trace(policy=chosen.policy, output_length=num_tokens, hash_ids=chosen.prompt.trace_ids())
        self._decisions.trace(decision, trace)

    def settle(self, call: Call, prompt: PromptCount, answer: Answer) -> None:
        """A request has its answer, whole or broken off."""
        if call.route.traits.is_free:
            return
        self._instruments.counted.counts[(prompt.why,)] += 1
        if answer.usage is not None:
            self._count_usage(call.model, answer.usage)

    def _count_usage(self, model: str, usage: Usage) -> None:
        instruments, of_model = self._instruments, (model,)
        num_completion_tokens = max(0, usage.completion_tokens or 0)
        self.num_completion_tokens += num_completion_tokens
        instruments.prompt_tokens.counts[of_model] += max(0, usage.prompt_tokens)
        instruments.completion_tokens.counts[of_model] += num_completion_tokens
        instruments.cached_tokens.counts[of_model] += max(0, usage.cached_tokens or 0)

    def _count_hits(self, endpoint: str, num_prompt_tokens: int, num_cached_tokens: int) -> None:
        num_prompt_tokens = max(0, num_prompt_tokens)
        self._instruments.endpoint_prompt_tokens.counts[(endpoint,)] += num_prompt_tokens
        num_cached_tokens = min(max(0, num_cached_tokens), num_prompt_tokens)
        self._instruments.endpoint_cached_tokens.counts[(endpoint,)] += num_cached_tokens


def _outcome(answer: Answer) -> str:
    if answer.error is not None:
        return answer.error.code or "upstream_error"
    assert answer.status is not None
    return f"{answer.status // 100}xx"
