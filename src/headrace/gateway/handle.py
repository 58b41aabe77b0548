"""The life of a request: identify, admit, tokenize, choose, forward, settle.

This page knows the order; each step's how is in its own module.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable

from headrace.errors import HeadraceError, OverloadedError, UpstreamConnectError
from headrace.gateway.admission.control import Admission
from headrace.gateway.admission.keys import ApiKey
from headrace.gateway.admission.refusals import headers_of
from headrace.gateway.admission.slots import RequestSlots
from headrace.gateway.admission.ticket import COST_HEADER, Ticket
from headrace.gateway.choose import Chooser, Chosen
from headrace.gateway.endpoint import Attempt, Endpoint
from headrace.gateway.fleet import Fleet
from headrace.gateway.http.answers import answer_error
from headrace.gateway.http.message import Headers, Request, ResponseHead
from headrace.gateway.http.response_writer import ResponseWriter
from headrace.gateway.identify import Call, identify
from headrace.gateway.local_routes import LocalRoutes
from headrace.gateway.prompt_tokens import PromptCount, PromptCounter
from headrace.gateway.proxy import Answer, RelayPlan, relay
from headrace.gateway.settle import Ledger
from headrace.gateway.stream_usage import ask_usage
from headrace.gateway.usage_routes import UsageRoutes
from headrace.openai.context_length import check_context_length

_LOG = logging.getLogger(__name__)


class RequestHandler:
    """Answers every request exactly once: with an endpoint's answer, or with an error of its own.

    Cancelled when the client leaves; the endpoint's connection is then closed and every count given back.
    """

    def __init__(
        self,
        *,
        fleet: Fleet,
        chooser: Chooser,
        slots: RequestSlots,
        admission: Admission,
        counter: PromptCounter,
        ledger: Ledger,
        local_routes: LocalRoutes,
        max_attempts: int,
    ) -> None:
        self._fleet = fleet
        self._chooser = chooser
        self._slots = slots
        self._admission = admission
        self._usage_routes = UsageRoutes(admission)
        self._counter = counter
        self._ledger = ledger
        self._local_routes = local_routes
        self._max_attempts = max_attempts
        self._now = time.monotonic

    async def __call__(self, request: Request, client: ResponseWriter) -> None:
        request_id = request.header(b"x-request-id") or os.urandom(8).hex().encode("ascii")
        try:
            await self._answer(request, client, request_id=request_id)
        except HeadraceError as error:
            self._refuse(client, error, request_id=request_id)
        except asyncio.CancelledError:
            self._ledger.count_disconnect()
            raise
        except Exception:  # noqa: BLE001 - the outermost boundary: logged, and answered once
            _LOG.exception("request %s failed by a fault of the gateway", request_id.decode("latin-1"))
            self._refuse(client, HeadraceError("The gateway failed; its log says why."), request_id=request_id)
        self._ledger.count_answer(request.path, client.status)

    async def _answer(self, request: Request, client: ResponseWriter, *, request_id: bytes) -> None:
        if self._local_routes.answer_health(request, client):
            return
        key = self._admission.identify(request)
        if self._local_routes.answer_models(request, client, may_use=key.may_use):
            return
        if not await self._usage_routes.answer(request, client, key):
            await self._serve(request, client, key, request_id=request_id)

    async def _serve(self, request: Request, client: ResponseWriter, key: ApiKey, *, request_id: bytes) -> None:
        call = self._identify(request, request_id=request_id)
        with self._slots:
            prompt = await self._counter.count(call)
            check_context_length(
                max_model_len=call.card.max_model_len,
                num_prompt_tokens=None if call.fields.truncate_prompt_tokens is not None else prompt.longest,
                num_tokens_asked=call.fields.num_tokens_asked,
                param=call.prompt_param,
            )
            with await self._admission.admit(key, call, prompt) as ticket:
                answer = await self._forward(call, prompt, ticket, client)
            self._ledger.settle(call, prompt, answer)

    def _identify(self, request: Request, *, request_id: bytes) -> Call:
        if not self._fleet.models:
            raise self._fleet.unavailable(None, now=self._now())
        call = identify(request, models=self._fleet.models, request_id=request_id)
        return ask_usage(call) if self._admission.is_metering else call

    async def _forward(self, call: Call, prompt: PromptCount, ticket: Ticket, client: ResponseWriter) -> Answer:
        """Send to one endpoint after the other until one answers; only while the client has got nothing."""
        failures: dict[Endpoint, str] = {}
        blocks = self._chooser.prompt_of(call, prompt)
        while True:
            chosen = self._chooser.choose(call, blocks, failures, now=self._now())
            endpoint = chosen.endpoint
            is_last = len(failures) + 1 >= self._max_attempts or not self._has_other(call, endpoint, failures)
            with endpoint.attempt(now=self._now(), num_new_tokens=chosen.routed.num_new_tokens) as attempt:
                headers = self._own_headers(call, prompt, chosen, attempt, ticket)
                plan = _plan(call, ticket, headers, holds_503=not is_last)
                answer = await relay(call, endpoint.pool, client, plan=plan)
                self._judge(attempt, answer)
            self._chooser.note_usage(chosen, answer.usage)
            self._ledger.note_attempt(call, prompt, chosen, answer=answer)
            if answer.error is None or answer.was_relayed:
                return answer
            failures[endpoint] = answer.error.message
            if is_last or not answer.can_retry:
                raise self._final_error(call, answer, failures)

    def _has_other(self, call: Call, endpoint: Endpoint, failures: dict[Endpoint, str]) -> bool:
        return bool(self._fleet.candidates(call.model, now=self._now(), excluding={*failures, endpoint}))

    def _judge(self, attempt: Attempt, answer: Answer) -> None:
        """Whether the endpoint did its part. A 503 that asks to wait is load, not a fault."""
        is_broken = answer.error is not None or answer.status == 503
        if is_broken and not answer.asks_to_wait:
            why = answer.error.message if answer.error else "it answered 503"
            attempt.fail(why, now=self._now())
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
        self, call: Call, prompt: PromptCount, chosen: Chosen, attempt: Attempt, ticket: Ticket
    ) -> Callable[[ResponseHead], Headers]:
        overhead_s = self._now() - call.request.received_s - ticket.waited_s
        self._ledger.note_overhead(overhead_s)

        def headers(head: ResponseHead) -> Headers:
            if head.status != 503:
                attempt.note_answering()
            self._chooser.note_answering(chosen, status=head.status, now=self._now())
            own = [
                (b"x-headrace-endpoint", chosen.endpoint.name_bytes),
                (b"x-headrace-policy", self._chooser.policy_name),
                (b"x-headrace-reason", f"{chosen.reason}; tokens {prompt.why}".encode("ascii", "replace")),
                (b"x-headrace-overhead-ms", b"%.3f" % (overhead_s * 1e3)),
                *ticket.headers(),
                *(_announce_cost(call, ticket) if head.is_event_stream else ticket.cost_headers()),
            ]
            if prompt.total is not None:
                own.append((b"x-headrace-prompt-tokens", b"%d" % prompt.total))
            if chosen.routed.num_cached_tokens is not None:
                own.append((b"x-headrace-cached-tokens-predicted", b"%d" % chosen.routed.num_cached_tokens))
            if all(name != b"x-request-id" for name, _ in head.headers):
                own.append((b"x-request-id", call.request_id))
            return own

        return headers

    def _refuse(self, client: ResponseWriter, error: HeadraceError, *, request_id: bytes) -> None:
        if client.is_started:
            client.break_off()
        else:
            answer_error(client, error, headers=[(b"x-request-id", request_id), *headers_of(error)])


def _plan(call: Call, ticket: Ticket, own_headers: Callable[[ResponseHead], Headers], *, holds_503: bool) -> RelayPlan:
    return RelayPlan(
        meter=ticket.meter,
        own_headers=own_headers,
        own_trailers=ticket.cost_headers if _takes_cost_trailer(call, ticket) else None,
        holds_503=holds_503,
        holds_json=ticket.has_price,
        hides_usage=call.hides_usage,
    )


def _announce_cost(call: Call, ticket: Ticket) -> Headers:
    return [(b"trailer", COST_HEADER)] if _takes_cost_trailer(call, ticket) else []


def _takes_cost_trailer(call: Call, ticket: Ticket) -> bool:
    """A stream's cost is known at its end only; HTTP has a place there, for clients that say they read it."""
    if not ticket.has_price or call.request.is_http10:
        return False
    return any(name == b"te" and b"trailers" in value.lower() for name, value in call.request.headers)
