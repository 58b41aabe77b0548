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
from headrace.gateway.http.head_facts import Headers
from headrace.gateway.http.message import ResponseHead
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

_CHOICE = b"".join(b"%b: %b\r\n" % (name, b"%b") for name in (ENDPOINT, POLICY, REASON, TOKEN_IN)) + (
    b"%b: %b\r\n%b" % (OVERHEAD_MS, b"%.3f", b"%b%b")
)
_PROMPT_TOKENS = PROMPT_TOKENS + b": %d\r\n"
_CACHED_TOKENS = CACHED_TOKENS_PREDICTED + b": %d\r\n"
_ANNOUNCED_COST = b"trailer: %b\r\n" % COST


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
            call.request.set_headers(trail.forwarded(call.request.headers))
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
            takes_trailer = _takes_cost_trailer(call, ticket)
            own_lines = self._own_lines(call, prompt, chosen, sending, attempt, ticket, takes_trailer=takes_trailer)
            keeps_back = partial(self._may_retry, call, failed)
            plan = _plan(sending, ticket, own_lines, takes_trailer=takes_trailer, keeps_back=keeps_back)
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

    def _own_lines(
        self,
        call: Call,
        prompt: PromptCount,
        chosen: Chosen,
        sending: Sending,
        attempt: Attempt,
        ticket: Ticket,
        *,
        takes_trailer: bool,
    ) -> Callable[[ResponseHead], bytes]:
        overhead_s = self._now() - call.request.received_s - ticket.waited_s
        self._ledger.note_overhead(overhead_s)

        def lines(head: ResponseHead) -> bytes:
            if not is_fault_status(head.status):
                attempt.note_answering()
            self._chooser.note_answering(chosen, status=head.status, now=self._now())
            return b"%b%b%b%b" % (
                self._lines_of_choice(prompt, chosen, sending, overhead_s=overhead_s),
                ticket.lines(),
                (_ANNOUNCED_COST if takes_trailer else b"") if head.is_event_stream else ticket.cost_line(),
                b"" if head.facts.of(_has_request_id) else b"x-request-id: %b\r\n" % call.request_id,
            )

        return lines

    def _lines_of_choice(self, prompt: PromptCount, chosen: Chosen, sending: Sending, *, overhead_s: float) -> bytes:
        num_tokens, num_cached = prompt.total, chosen.routed.num_cached_tokens
        return _CHOICE % (
            chosen.endpoint.name_bytes,
            self._chooser.policy_name,
            f"{chosen.reason}; tokens {prompt.why}".encode("ascii", "replace"),
            sending.header,
            overhead_s * 1e3,
            b"" if num_tokens is None else _PROMPT_TOKENS % num_tokens,
            b"" if num_cached is None else _CACHED_TOKENS % num_cached,
        )


def _plan(
    sending: Sending,
    ticket: Ticket,
    own_lines: Callable[[ResponseHead], bytes],
    *,
    takes_trailer: bool,
    keeps_back: Callable[[], bool],
) -> RelayPlan:
    call = sending.call
    return RelayPlan(
        meter=ticket.meter,
        own_lines=own_lines,
        own_trailers=ticket.cost_headers if takes_trailer else None,
        keeps_back=keeps_back,
        holds_refusals=sending.why_text is None,
        holds_json=ticket.has_price,
        hides_usage=call.hides_usage,
        path=call.request.path,
    )


def _takes_cost_trailer(call: Call, ticket: Ticket) -> bool:
    """A stream's cost is known at its end only; HTTP has a place there, for clients that say they read it."""
    return ticket.has_price and not call.request.is_http10 and call.request.facts.of(_takes_trailers)


def _takes_trailers(headers: Headers) -> bool:
    return any(name == b"te" and b"trailers" in value.lower() for name, value in headers)


def _has_request_id(headers: Headers) -> bool:
    return any(name == b"x-request-id" for name, _ in headers)
