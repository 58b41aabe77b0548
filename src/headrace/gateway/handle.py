"""The life of a request: identify, tokenize, admit, choose, forward, settle.

This page knows the order; each step's how is in its own module.
"""

import asyncio
import logging
import random
import time

from headrace.errors import ContextLengthError, HeadraceError
from headrace.gateway.admission.control import Admission
from headrace.gateway.admission.keys import ApiKey
from headrace.gateway.admission.refusals import headers_of
from headrace.gateway.admission.slots import RequestSlots
from headrace.gateway.admission.ticket import Ticket
from headrace.gateway.endpoints.fleet import Fleet
from headrace.gateway.forward import Forwarder
from headrace.gateway.http.answers import answer_error, answer_json
from headrace.gateway.http.head import request_id_of
from headrace.gateway.http.head_facts import Headers
from headrace.gateway.http.message import Request
from headrace.gateway.http.own_headers import REASON
from headrace.gateway.http.response_writer import ResponseWriter
from headrace.gateway.identify import Call, identify
from headrace.gateway.local_routes import LocalRoutes
from headrace.gateway.prompt.tokenize_routes import TokenizeRoutes
from headrace.gateway.prompt.tokens import PromptCounter
from headrace.gateway.routes import ROUTES
from headrace.gateway.settle import Ledger
from headrace.gateway.telemetry.trail import Observation, Trail
from headrace.gateway.token_in.parts import TokenInParts
from headrace.gateway.usage.routes import UsageRoutes
from headrace.gateway.usage.stream_usage import ask_usage
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
        slots: RequestSlots,
        admission: Admission,
        counter: PromptCounter,
        token_in: TokenInParts,
        ledger: Ledger,
        local_routes: LocalRoutes,
        tokenize_routes: TokenizeRoutes,
        forwarder: Forwarder,
        observation: Observation,
    ) -> None:
        self._fleet = fleet
        self._slots = slots
        self._admission = admission
        self._usage_routes = UsageRoutes(admission)
        self._counter = counter
        self._token_in = token_in
        self._ledger = ledger
        self._local_routes = local_routes
        self._tokenize_routes = tokenize_routes
        self._forwarder = forwarder
        self._observation = observation
        self._now = time.monotonic

    async def __call__(self, request: Request, client: ResponseWriter) -> None:
        request_id = request_id_of(request.header(b"x-request-id")) or b"%016x" % random.getrandbits(64)
        trail = self._observation.begin(request, request_id=request_id)
        try:
            if request.path in ROUTES:
                await self._serve(request, client, trail, request_id=request_id)
            else:
                await self._answer(request, client, request_id=request_id)
        except HeadraceError as error:
            self._refuse(client, error, path=request.path, request_id=request_id)
        except asyncio.CancelledError:
            self._ledger.count_disconnect()
            trail.ended(None)
            raise
        except Exception:  # noqa: BLE001 - the outermost boundary: logged, and answered once
            _LOG.exception("request %s failed by a fault of the gateway", request_id.decode("latin-1"))
            failure = HeadraceError("The gateway failed; its log says why.")
            self._refuse(client, failure, path=request.path, request_id=request_id)
        trail.ended(client.status)
        self._ledger.count_answer(request.path, client.status, took_s=self._now() - request.received_s)

    async def _answer(self, request: Request, client: ResponseWriter, *, request_id: bytes) -> None:
        """What is about the gateway, the fleet or the key, and needs no model."""
        if self._local_routes.answer_health(request, client):
            return
        key = self._admission.identify(request)
        if self._local_routes.answer_models(request, client, may_use=key.may_use):
            return
        if not await self._usage_routes.answer(request, client, key):
            self._identify(request, key, request_id=request_id)  # which says that there is no such path

    async def _serve(self, request: Request, client: ResponseWriter, trail: Trail, *, request_id: bytes) -> None:
        key = self._admission.identify(request)
        call = self._identify(request, key, request_id=request_id)
        trail.identified(call, key_name=key.name)
        with self._slots:
            try:
                prompt = self._token_in.judged(call, await self._counter.count(call))
            except ContextLengthError as error:
                prompt = self._token_in.too_long(call, error)
            trail.counted(prompt)
            check_context_length(
                max_model_len=call.card.max_model_len,
                num_prompt_tokens=None if call.fields.truncate_prompt_tokens is not None else prompt.longest,
                num_tokens_asked=min(call.limits_asked, default=None),
                param=call.prompt_param,
            )
            ticket = self._admission.admit_now(key, call, prompt) or await self._admission.admit(key, call, prompt)
            with ticket:
                trail.admitted(waited_s=ticket.waited_s)
                if call.route.traits.is_free and await self._answer_here(call, ticket, client):
                    return
                answer = await self._forwarder.forward(call, prompt, ticket, client, trail)
            self._ledger.settle(call, prompt, answer)

    async def _answer_here(self, call: Call, ticket: Ticket, client: ResponseWriter) -> bool:
        """Answer in place of an endpoint, if that is surely the same."""
        if self._token_in.ledger.differs(call.model) or (body := await self._tokenize_routes.body_of(call)) is None:
            return False
        answer_json(client, body, headers=_headers_here(call, ticket))
        return True

    def _identify(self, request: Request, key: ApiKey, *, request_id: bytes) -> Call:
        if not self._fleet.models:
            raise self._fleet.unavailable(None, now=self._now())
        call = identify(request, models=self._fleet.models, request_id=request_id, may_use=key.may_use)
        return ask_usage(call) if self._admission.is_metering else call

    def _refuse(self, client: ResponseWriter, error: HeadraceError, *, path: str, request_id: bytes) -> None:
        if client.is_started:
            client.break_off()
        else:
            answer_error(client, error, path=path, headers=[(b"x-request-id", request_id), *headers_of(error)])


def _headers_here(call: Call, ticket: Ticket) -> Headers:
    """Of an answer that the gateway gives in place of an endpoint."""
    return [(REASON, b"answered by the gateway"), (b"x-request-id", call.request_id), *ticket.headers()]
