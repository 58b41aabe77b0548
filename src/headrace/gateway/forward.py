"""One step of a request's life, and the longest: it goes to an endpoint, and where that fails before it answers, to
another; what the client is told beside the answer is written here."""

import asyncio
import random
import time
from collections.abc import Callable, Collection
from functools import partial

from headrace.errors import HeadraceError, OverloadedError, UpstreamConnectError
from headrace.gateway.admission.ticket import Ticket
from headrace.gateway.choose import Chooser, Chosen
from headrace.gateway.endpoints.endpoint import Attempt, Endpoint
from headrace.gateway.endpoints.fleet import Fleet
from headrace.gateway.http.message import Headers, ResponseHead
from headrace.gateway.http.own_headers import (
    CACHED_TOKENS_PREDICTED,
    COST,
    ENDPOINT,
    OVERHEAD_MS,
    POLICY,
    PROMPT_TOKENS,
    REASON,
    TOKEN_IN,
)
from headrace.gateway.http.response_writer import ResponseWriter
from headrace.gateway.identify import Call
from headrace.gateway.prompt.tokens import PromptCount
from headrace.gateway.proxy import Answer, RelayPlan, relay
from headrace.gateway.retry import Retries, is_fault_status
from headrace.gateway.settle import Ledger
from headrace.gateway.telemetry.trail import Trail
from headrace.gateway.token_in.parts import TokenInParts
from headrace.gateway.token_in.sending import Sending


class Forwarder:
    """Sends requests to the endpoints of one fleet."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        chooser: Chooser,
        token_in: TokenInParts,
        ledger: Ledger,
        retries: Retries,
        max_attempts: int,
    ) -> None:
        self._fleet = fleet
        self._chooser = chooser
        self._token_in = token_in
        self._ledger = ledger
        self._retries = retries
        self._max_attempts = max_attempts
        self._now = time.monotonic

    async def forward(
        self, call: Call, prompt: PromptCount, ticket: Ticket, client: ResponseWriter, trail: Trail
    ) -> Answer:
        """Send to one endpoint after the other until one answers; only while the client has got nothing.

        Raises the last endpoint's error, or OverloadedError when there is none left. Cancelled, it gives its place at
        the endpoint back, and closes the connection.
        """
        failures: dict[Endpoint, str] = {}
        blocks = self._chooser.prompt_of(call, prompt)
        self._retries.note_request(self._now())
        while True:
            chosen = self._chooser.choose(call, blocks, failures, now=self._now())
            endpoint = chosen.endpoint
            trail.chosen(chosen)
            call.request.headers = trail.forwarded(call.request.headers)
            with endpoint.attempt(now=self._now(), num_new_tokens=chosen.routed.num_new_tokens) as attempt:
                failed = {*failures, endpoint}
                sending, answer = await self._send(call, prompt, chosen, attempt, ticket, client, failed=failed)
                self._judge(attempt, answer)
            trail.answered(answer)
            self._chooser.note_usage(chosen, answer.usage)
            self._ledger.note_attempt(call, prompt, chosen, sending, answer=answer)
            if answer.error is None or answer.was_relayed:
                return answer
            failures[endpoint] = answer.error.message
            if not answer.was_kept_back and not (answer.can_retry and self._may_retry(call, failures)):
                raise self._final_error(call, answer, failures)
            await asyncio.sleep(self._retries.delay_s(len(failures), draw=random.random()))  # noqa: S311 - no secret
            self._ledger.count_retry()

    async def _send(
        self,
        call: Call,
        prompt: PromptCount,
        chosen: Chosen,
        attempt: Attempt,
        ticket: Ticket,
        client: ResponseWriter,
        *,
        failed: Collection[Endpoint],
    ) -> tuple[Sending, Answer]:
        """Send to the endpoint that was chosen: once, and where it refuses token ids, once more as text."""
        sending = self._token_in.prepare(call, prompt, chosen.endpoint)
        while True:
            headers = self._own_headers(call, prompt, chosen, sending, attempt, ticket)
            plan = _plan(sending, ticket, headers, keeps_back=partial(self._may_retry, call, failed))
            answer = await relay(sending.call, chosen.endpoint.pool, client, plan=plan)
            if not answer.is_refusal:
                return sending, answer
            sending = self._token_in.as_text(call, chosen.endpoint)

    def _may_retry(self, call: Call, failed: Collection[Endpoint]) -> bool:
        """Whether the request may go to one more endpoint; its retry is then taken from the budget of all."""
        now = self._now()
        others = self._fleet.candidates(call.model, now=now, excluding=failed, route=call.route)
        if not others or len(failed) >= self._max_attempts:
            return False
        may_retry = self._retries.take(now)
        if not may_retry:
            self._ledger.count_retry_refused()
        return may_retry

    def _judge(self, attempt: Attempt, answer: Answer) -> None:
        """Whether the endpoint did its part."""
        if answer.is_fault:
            attempt.fail(answer.error.message if answer.error else f"It answered {answer.status}.", now=self._now())
        else:
            attempt.succeed()

    def _final_error(self, call: Call, answer: Answer, failures: dict[Endpoint, str]) -> HeadraceError:
        assert answer.error is not None
        if not isinstance(answer.error, UpstreamConnectError):
            return answer.error
        reasons = "; ".join(f"{endpoint.name}: {why}" for endpoint, why in failures.items())
        return OverloadedError(
            f"No endpoint could be reached for model {call.model!r} ({reasons}). Try again later.",
            code="no_endpoint_available",
            retry_after_s=1.0,
        )

    def _own_headers(
        self, call: Call, prompt: PromptCount, chosen: Chosen, sending: Sending, attempt: Attempt, ticket: Ticket
    ) -> Callable[[ResponseHead], Headers]:
        overhead_s = self._now() - call.request.received_s - ticket.waited_s
        self._ledger.note_overhead(overhead_s)

        def headers(head: ResponseHead) -> Headers:
            if not is_fault_status(head.status):
                attempt.note_answering()
            self._chooser.note_answering(chosen, status=head.status, now=self._now())
            own = [
                (ENDPOINT, chosen.endpoint.name_bytes),
                (POLICY, self._chooser.policy_name),
                (REASON, f"{chosen.reason}; tokens {prompt.why}".encode("ascii", "replace")),
                (TOKEN_IN, sending.header),
                (OVERHEAD_MS, b"%.3f" % (overhead_s * 1e3)),
                *ticket.headers(),
                *(_announce_cost(call, ticket) if head.is_event_stream else ticket.cost_headers()),
            ]
            if prompt.total is not None:
                own.append((PROMPT_TOKENS, b"%d" % prompt.total))
            if chosen.routed.num_cached_tokens is not None:
                own.append((CACHED_TOKENS_PREDICTED, b"%d" % chosen.routed.num_cached_tokens))
            if all(name != b"x-request-id" for name, _ in head.headers):
                own.append((b"x-request-id", call.request_id))
            return own

        return headers


def _plan(
    sending: Sending, ticket: Ticket, own_headers: Callable[[ResponseHead], Headers], *, keeps_back: Callable[[], bool]
) -> RelayPlan:
    call = sending.call
    return RelayPlan(
        meter=ticket.meter,
        own_headers=own_headers,
        own_trailers=ticket.cost_headers if _takes_cost_trailer(call, ticket) else None,
        keeps_back=keeps_back,
        holds_refusals=sending.why_text is None,
        holds_json=ticket.has_price,
        hides_usage=call.hides_usage,
        path=call.request.path,
    )


def _announce_cost(call: Call, ticket: Ticket) -> Headers:
    return [(b"trailer", COST)] if _takes_cost_trailer(call, ticket) else []


def _takes_cost_trailer(call: Call, ticket: Ticket) -> bool:
    """A stream's cost is known at its end only; HTTP has a place there, for clients that say they read it."""
    if not ticket.has_price or call.request.is_http10:
        return False
    return any(name == b"te" and b"trailers" in value.lower() for name, value in call.request.headers)
