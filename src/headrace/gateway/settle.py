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
from headrace.gateway.routes import Route
from headrace.gateway.telemetry.decisions import Decision, DecisionLog, Trace
from headrace.gateway.telemetry.instruments import Instruments
from headrace.gateway.token_in.sending import Sending
from headrace.gateway.usage.usage import Usage

_ROUTES = frozenset({*(route.value for route in Route), "/v1/models", "/health"})


class Ledger:
    """Counts what happened. Every call is synchronous, so that no cancellation can split it."""

    def __init__(self, instruments: Instruments, *, parity: ParityCheck, decisions: DecisionLog) -> None:
        self._instruments = instruments
        self._parity = parity
        self._decisions = decisions
        self.num_requests = 0
        self.num_completion_tokens = 0
        self.num_disconnects = 0

    def count_answer(self, path: str, status: int, *, took_s: float) -> None:
        """A request was answered with `status`, so long after it was received."""
        self.num_requests += 1
        route = path if path in _ROUTES else "other"
        self._instruments.requests.add(route, str(status))
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
        self._instruments.bills.add(bill.source)
        if bill.cost:
            self._instruments.cost.add(model, number=bill.cost / PICO)

    def note_overhead(self, overhead_s: float) -> None:
        """A request leaves the gateway so long after it was received."""
        self._instruments.overhead_s.observe(overhead_s)

    def note_attempt(
        self, call: Call, prompt: PromptCount, chosen: Chosen, sending: Sending, *, answer: Answer
    ) -> None:
        """A request to one endpoint has ended."""
        endpoint = chosen.endpoint
        outcome = _outcome(answer)
        self._instruments.attempts.add(endpoint.name, outcome)
        if answer.first_byte_s is not None:
            self._instruments.first_byte_s.observe(answer.first_byte_s)
        if answer.was_relayed and answer.error is not None:
            self._instruments.broken_streams.add(endpoint.name)
        if answer.usage is not None and answer.usage.cached_tokens is not None:
            self._count_hits(endpoint.name, answer.usage.prompt_tokens, answer.usage.cached_tokens)
        if not call.route.traits.is_free:
            self._parity.note(call, prompt, chosen, sending, answer=answer)
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
                token_in=sending.header.decode("ascii"),
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
        if call.route.traits.is_free:
            return
        self._instruments.counted.add(prompt.why)
        if answer.usage is not None:
            self._count_usage(call.model, answer.usage)

    def _count_usage(self, model: str, usage: Usage) -> None:
        num_completion_tokens = max(0, usage.completion_tokens or 0)
        self.num_completion_tokens += num_completion_tokens
        self._instruments.prompt_tokens.add(model, number=max(0, usage.prompt_tokens))
        self._instruments.completion_tokens.add(model, number=num_completion_tokens)
        self._instruments.cached_tokens.add(model, number=max(0, usage.cached_tokens or 0))

    def _count_hits(self, endpoint: str, num_prompt_tokens: int, num_cached_tokens: int) -> None:
        num_prompt_tokens = max(0, num_prompt_tokens)
        self._instruments.endpoint_prompt_tokens.add(endpoint, number=num_prompt_tokens)
        self._instruments.endpoint_cached_tokens.add(endpoint, number=min(max(0, num_cached_tokens), num_prompt_tokens))


def _outcome(answer: Answer) -> str:
    if answer.error is not None:
        return answer.error.code or "upstream_error"
    assert answer.status is not None
    return f"{answer.status // 100}xx"
