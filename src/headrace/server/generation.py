"""The life of a generation request, for chat and completions alike: read, decode, check, tokenize, generate, answer."""

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic

from starlette.types import Receive, Scope, Send

from headrace.engine.sampling_params import SamplingParams
from headrace.openai.checks import check_stream_options
from headrace.openai.context_length import check_context_length
from headrace.server.access_log import note_answer
from headrace.server.cut import admitted, disconnected, leave_when
from headrace.server.engine_work import EngineWork
from headrace.server.generation_api import AnswerHead, GenerationApi, Prompt, RequestT
from headrace.server.intake import read_body
from headrace.server.sampling import sampling_params
from headrace.server.serving import Serving
from headrace.server.structured import naming_fields_of
from headrace.server.tool_calls import with_tools
from headrace.server.trace_context import trace_headers
from headrace.server.writer import Writer


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A request that has been checked and tokenized."""

    prompts: Sequence[Prompt]
    params: SamplingParams


async def prepare(api: GenerationApi[RequestT], request: RequestT, serving: Serving) -> Prepared:
    """What a request comes down to. Raises before anything reaches the engine."""
    serving.check_model(request.model)
    check_stream_options(request)
    params = sampling_params(
        request,
        max_tokens=api.max_tokens(request),
        logprobs=api.logprobs(request),
        prompt_logprobs=api.prompt_logprobs(request),
        defaults=serving.engine.default_sampling_params(),
    )
    params = with_tools(params, request, serving.tools)
    prompts = await api.tokenize(request, serving)
    for prompt in prompts:
        check_context_length(
            max_model_len=serving.model.max_model_len,
            num_prompt_tokens=len(prompt),
            num_tokens_asked=api.max_tokens(request),
            param=api.prompt_param,
        )
    return Prepared(prompts=prompts, params=params)


class GenerationEndpoint(Generic[RequestT]):
    """The ASGI endpoint of one route. A client that leaves aborts, at any moment, what the engine does for it."""

    def __init__(self, api: GenerationApi[RequestT], serving: Serving) -> None:
        self._api = api
        self._serving = serving

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with admitted(self._serving.live, scope, receive):
            body = await read_body(scope, receive, self._serving.settings)
            request = self._api.decode(body)
            writer = Writer(send, timeout_s=self._serving.settings.write_timeout_s)
            async with leave_when(partial(disconnected, receive), name="disconnect watch"):
                with naming_fields_of(request, schema_param=self._api.schema_param):
                    await self._answer(request, writer, scope)

    async def _answer(self, request: RequestT, writer: Writer, scope: Scope) -> None:
        serving = self._serving
        prepared = await prepare(self._api, request, serving)
        head = self._head(request.model)
        note_answer(scope, answer_id=head.id)
        work = EngineWork(
            request_ids=[f"{head.id}-{index}" for index in range(len(prepared.prompts))],
            prompts=prepared.prompts,
            params=prepared.params,
            model=request.model,
            priority=request.priority or 0,
            answer_id=head.id,
            cache_salt=request.cache_salt,
            trace_headers=trace_headers(scope),
        )
        if request.stream:
            await work.stream(serving, writer, self._api.chunks(head, request, serving))
        else:
            await work.finish(serving, writer, partial(self._api.answer, head, request, serving=serving))

    def _head(self, model: str | None) -> AnswerHead:
        return AnswerHead(
            id=f"{self._api.id_prefix}-{uuid.uuid4().hex}",
            created=int(time.time()),
            model=model or self._serving.model.served_model_name,
        )
