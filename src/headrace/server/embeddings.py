"""/v1/embeddings: texts in, a vector of each out."""

import base64
import contextlib
import time
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial
from typing import TypeAlias

import msgspec
import numpy as np
from starlette.types import Receive, Scope, Send

from headrace.engine.embedding_outputs import EmbeddingRequestOutput
from headrace.engine.outputs import TokensPrompt
from headrace.engine.pooling_params import PoolingParams
from headrace.errors import EngineGenerateError, InvalidRequestError
from headrace.openai import unbuilt
from headrace.openai.checks import prompt_list
from headrace.openai.context_length import check_context_length
from headrace.openai.decode import RequestDecoder
from headrace.openai.schema.embeddings import Embedding, EmbeddingList, EmbeddingsRequest, EmbeddingsUsage
from headrace.server.access_log import note_answer
from headrace.server.cut import admitted, disconnected, leave_when
from headrace.server.intake import read_body
from headrace.server.ready_outputs import ready_outputs
from headrace.server.serving import Serving
from headrace.server.token_ids import check_vocabulary
from headrace.server.trace_context import trace_headers
from headrace.server.writer import Writer
from headrace.tokenization import TokenIds

_Prompt: TypeAlias = list[int] | TokenIds


class Embeddings:
    """The ASGI endpoint. A client that leaves aborts what the engine does for it."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._decoder = RequestDecoder(EmbeddingsRequest, unbuilt=unbuilt.EMBEDDINGS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        serving = self._serving
        async with admitted(serving.live, scope, receive):
            request = self._decoder.decode(await read_body(scope, receive, serving.settings))
            serving.check_model(request.model)
            writer = Writer(send, timeout_s=serving.settings.write_timeout_s)
            async with leave_when(partial(disconnected, receive), name="disconnect watch"):
                answer = await self._embed(request, scope)
                await writer.send_json(msgspec.json.encode(answer))

    async def _embed(self, request: EmbeddingsRequest, scope: Scope) -> EmbeddingList:
        params = PoolingParams(dimensions=request.dimensions, normalize=request.normalize is not False)
        prompts = await _token_ids(request, self._serving)
        answer_id = f"embd-{uuid.uuid4().hex}"
        note_answer(scope, answer_id=answer_id)
        ids = [f"{answer_id}-{index}" for index in range(len(prompts))]
        streams = [
            self._stream(prompt, params, request_id, request, trace=trace_headers(scope))
            for prompt, request_id in zip(prompts, ids, strict=True)
        ]
        outputs: dict[int, EmbeddingRequestOutput] = {}
        with self._serving.live.generating(ids, answer_id=answer_id):
            async with contextlib.aclosing(ready_outputs(streams)) as batches:
                async for batch in batches:
                    outputs.update(batch)
        return EmbeddingList(
            id=answer_id,
            created=int(time.time()),
            model=request.model or self._serving.model.served_model_name,
            data=[_embedding(index, outputs[index], request) for index in range(len(prompts))],
            usage=_usage(list(outputs.values())),
        )

    def _stream(
        self,
        prompt: _Prompt,
        params: PoolingParams,
        request_id: str,
        request: EmbeddingsRequest,
        *,
        trace: Mapping[str, str] | None,
    ) -> AsyncGenerator[EmbeddingRequestOutput, None]:
        salt = request.cache_salt
        return self._serving.engine.encode(
            prompt if salt is None else TokensPrompt(prompt_token_ids=prompt, cache_salt=salt),
            params,
            request_id,
            lora_request=self._serving.adapter_of(request.model),
            trace_headers=trace,
            priority=request.priority or 0,
        )


async def _token_ids(request: EmbeddingsRequest, serving: Serving) -> list[_Prompt]:
    """Of each input, in order. Raises before any of them reaches the engine."""
    inputs = prompt_list(request.input, max_prompts=serving.settings.max_inputs, param="input")
    is_list = isinstance(request.input, list) and not isinstance(request.input[0], int)
    prompts: list[_Prompt] = []
    for index, given in enumerate(inputs):
        if isinstance(given, str):
            encoded = await serving.engine.tokenization.encode(
                given,
                model=serving.model.served_model_name,
                add_special_tokens=request.add_special_tokens is not False,
            )
            prompts.append(encoded.token_ids)
        else:
            prompts.append(given)
        _check(prompts[-1], serving, param=f"input[{index}]" if is_list else "input")
    return prompts


def _check(prompt: _Prompt, serving: Serving, *, param: str) -> None:
    if len(prompt) == 0:
        raise InvalidRequestError(f"{param} is an empty text", param=param)
    check_context_length(
        max_model_len=serving.model.max_model_len,
        num_prompt_tokens=len(prompt),
        num_tokens_asked=None,
        param=param,
    )
    if isinstance(prompt, list):
        check_vocabulary(prompt, serving.model.vocab_size, param=param)


def _embedding(index: int, output: EmbeddingRequestOutput, request: EmbeddingsRequest) -> Embedding:
    if output.outputs is None:
        raise EngineGenerateError("the request was aborted by the server")
    vector = output.outputs.embedding
    if request.encoding_format == "base64":
        packed = base64.b64encode(np.array(vector, dtype="<f4").tobytes()).decode("ascii")
        return Embedding(index=index, embedding=packed)
    return Embedding(index=index, embedding=vector)


def _usage(outputs: Sequence[EmbeddingRequestOutput]) -> EmbeddingsUsage:
    num_tokens = sum(len(output.prompt_token_ids) for output in outputs)
    return EmbeddingsUsage(prompt_tokens=num_tokens, total_tokens=num_tokens)
