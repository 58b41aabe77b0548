"""The life of a generation request, for chat and completions alike: read, decode, check, tokenize, generate, answer."""

import asyncio
import contextlib
import time
import uuid
from functools import partial
from typing import Generic

from starlette.types import Receive, Scope, Send

from headrace.openai.checks import check_stream_options
from headrace.openai.context_length import check_context_length
from headrace.server.cut import admitted, disconnected, leave_when
from headrace.server.generation_api import AnswerHead, GenerationApi, RequestT
from headrace.server.intake import read_body
from headrace.server.ready_outputs import ready_outputs
from headrace.server.sampling import sampling_params
from headrace.server.serving import Serving
from headrace.server.streaming import EventStream, finished_outputs
from headrace.server.tally import Tally
from headrace.server.writer import Writer


class GenerationEndpoint(Generic[RequestT]):
    """The ASGI endpoint of one route. A client that leaves aborts, at any moment, what the engine does for it."""

    def __init__(self, api: GenerationApi[RequestT], serving: Serving) -> None:
        self._api = api
        self._serving = serving

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrived_at = asyncio.get_running_loop().time()
        async with admitted(self._serving.live, scope, receive):
            body = await read_body(scope, receive, self._serving.settings)
            request = self._api.decode(body)
            writer = Writer(send, timeout_s=self._serving.settings.write_timeout_s)
            async with leave_when(partial(disconnected, receive), name="disconnect watch"):
                await self._answer(request, writer, arrived_at=arrived_at)

    async def _answer(self, request: RequestT, writer: Writer, *, arrived_at: float) -> None:
        serving = self._serving
        serving.check_model(request.model)
        check_stream_options(request)
        params = sampling_params(
            request,
            max_tokens=self._api.max_tokens(request),
            defaults=serving.engine.default_sampling_params(),
        )
        prompts = await self._api.tokenize(request, serving)
        for prompt in prompts:
            check_context_length(
                max_model_len=serving.model.max_model_len,
                num_prompt_tokens=len(prompt),
                num_tokens_asked=self._api.max_tokens(request),
                param=self._api.prompt_param,
            )

        head = self._head()
        ids = [f"{head.id}-{index}" for index in range(len(prompts))]
        streams = [
            serving.engine.generate(prompt, params, request_id, priority=request.priority or 0)
            for prompt, request_id in zip(prompts, ids, strict=True)
        ]
        tally = Tally(serving.metrics, num_generations=len(prompts), arrived_at=arrived_at)
        with serving.live.generating(ids), contextlib.closing(tally):
            async with contextlib.aclosing(ready_outputs(streams)) as batches:
                if request.stream:
                    include_usage = bool(request.stream_options and request.stream_options.include_usage)
                    events = EventStream(writer, self._api.chunks(head), tally, include_usage=include_usage)
                    await events.send(batches)
                else:
                    outputs = await finished_outputs(batches, tally)
                    await writer.send_json(self._api.answer(head, outputs, tally.usage()))

    def _head(self) -> AnswerHead:
        return AnswerHead(
            id=f"{self._api.id_prefix}-{uuid.uuid4().hex}",
            created=int(time.time()),
            model=self._serving.model.served_model_name,
        )
