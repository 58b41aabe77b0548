"""/inference/v1/generate: token ids in, token ids out, for gateways that tokenize themselves."""

import time
import uuid
from collections.abc import Mapping, Sequence
from functools import partial

import msgspec
from starlette.types import Receive, Scope, Send

from headrace.engine.outputs import RequestOutputKind
from headrace.engine.sampling_params import SamplingParams
from headrace.errors import HeadraceError, InvalidRequestError
from headrace.openai import unbuilt
from headrace.openai.checks import check_stream_options, wants_usage
from headrace.openai.context_length import check_context_length
from headrace.openai.decode import RequestDecoder, invalid_field
from headrace.openai.errors import error_body
from headrace.openai.schema.generate import (
    GenerateChoice,
    GenerateChunk,
    GeneratedLogprobs,
    GenerateRequest,
    GenerateResponse,
)
from headrace.openai.schema.logprobs import ChatLogprobs
from headrace.openai.schema.usage import Usage
from headrace.openai.sse import DONE, encode_event
from headrace.server.access_log import note_answer
from headrace.server.cut import admitted, disconnected, leave_when
from headrace.server.engine_work import EngineWork
from headrace.server.generation_api import AnswerHead, Choice, stop_reason
from headrace.server.intake import read_body
from headrace.server.logprobs import chat_logprobs, generated_logprobs, prompt_logprobs
from headrace.server.serving import Serving
from headrace.server.trace_context import trace_headers
from headrace.server.writer import Writer

_WITHIN = "sampling_params"
_MAX_ID_CHARS = 256


class Generate:
    """The ASGI endpoint. A client that leaves aborts what the engine does for it."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._decoder = RequestDecoder(GenerateRequest, unbuilt=unbuilt.GENERATE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        serving = self._serving
        async with admitted(serving.live, scope, receive):
            request = self._decoder.decode(await read_body(scope, receive, serving.settings))
            work = self._work(request, trace=trace_headers(scope))
            note_answer(scope, answer_id=work.answer_id)
            head = AnswerHead(
                id=work.answer_id,
                created=int(time.time()),
                model=request.model or serving.model.served_model_name,
            )
            writer = Writer(send, timeout_s=serving.settings.write_timeout_s)
            async with leave_when(partial(disconnected, receive), name="disconnect watch"):
                if request.stream:
                    await work.stream(serving, writer, _GenerateChunks(head, request, work.params))
                else:
                    await work.finish(serving, writer, partial(_answer, head, request, work.params))

    def _work(self, request: GenerateRequest, *, trace: Mapping[str, str] | None) -> EngineWork:
        self._serving.check_model(request.model)
        if not request.token_ids:
            raise InvalidRequestError("token_ids must not be empty", param="token_ids")
        if request.request_id is not None and not 0 < len(request.request_id) <= _MAX_ID_CHARS:
            message = f"request_id has {len(request.request_id)} characters, not 1 to {_MAX_ID_CHARS}"
            raise InvalidRequestError(message, param="request_id")
        check_stream_options(request)
        params = _sampling_params(request)
        check_context_length(
            max_model_len=self._serving.model.max_model_len,
            num_prompt_tokens=len(request.token_ids),
            num_tokens_asked=params.max_tokens,
            param="token_ids",
        )
        request_id = request.request_id or uuid.uuid4().hex
        return EngineWork(
            request_ids=[request_id],
            prompts=[request.token_ids],
            params=params,
            model=request.model,
            priority=request.priority or 0,
            answer_id=request_id,
            cache_salt=request.cache_salt,
            trace_headers=trace,
        )


def _sampling_params(request: GenerateRequest) -> SamplingParams:
    """Errors name the field of `sampling_params`. Text is only made where the answer or a stop string needs it."""
    try:
        given = msgspec.convert({"max_tokens": None, **request.sampling_params}, SamplingParams, str_keys=True)
        given.refuse_unbuilt()
    except msgspec.ValidationError as error:
        raise invalid_field(error, within=_WITHIN) from error
    except InvalidRequestError as error:
        param = f"{_WITHIN}.{error.param}" if error.param is not None else _WITHIN
        raise type(error)(error.message, param=param, code=error.code) from error
    if request.output_mode == "text" and not given.detokenize:
        message = 'output_mode "text" needs sampling_params.detokenize to be true'
        raise InvalidRequestError(message, param="sampling_params.detokenize")
    if request.stream and given.prompt_logprobs is not None:
        message = "prompt_logprobs is only told when stream is false"
        raise InvalidRequestError(message, param="sampling_params.prompt_logprobs")
    return msgspec.structs.replace(
        given,
        output_kind=RequestOutputKind.DELTA if request.stream else RequestOutputKind.FINAL_ONLY,
        detokenize=request.output_mode == "text" or bool(given.stop_strings),
    )


async def _answer(
    head: AnswerHead, request: GenerateRequest, params: SamplingParams, choices: Sequence[Choice], usage: Usage
) -> bytes:
    told = choices[0].output.prompt_logprobs
    response = GenerateResponse(
        request_id=head.id,
        model=head.model,
        created=head.created,
        output_mode=request.output_mode,
        choices=[_choice(choice, request, params) for choice in choices],
        usage=usage,
        prompt_logprobs=prompt_logprobs(told) if told is not None else None,
        prompt_token_ids=choices[0].output.prompt_token_ids if request.return_token_ids else msgspec.UNSET,
    )
    return msgspec.json.encode(response)


def _choice(choice: Choice, request: GenerateRequest, params: SamplingParams) -> GenerateChoice:
    completion = choice.completion
    return GenerateChoice(
        index=choice.index,
        token_ids=completion.token_ids,
        finish_reason=completion.finish_reason,
        stop_reason=stop_reason(completion),
        text=completion.text if request.output_mode == "text" else msgspec.UNSET,
        logprobs=_logprobs(choice, request, params),
    )


def _logprobs(
    choice: Choice, request: GenerateRequest, params: SamplingParams
) -> GeneratedLogprobs | ChatLogprobs | None:
    positions = choice.completion.logprobs
    if positions is None:
        return None
    if request.output_mode == "text":
        return chat_logprobs(positions, num_top=params.logprobs or 0)
    return generated_logprobs(positions)


class _GenerateChunks:
    """A chunk for every output of the engine, its last one with the reason that it ended."""

    def __init__(self, head: AnswerHead, request: GenerateRequest, params: SamplingParams) -> None:
        self._head = head
        self._request = request
        self._params = params
        self._encode = msgspec.json.Encoder().encode

    begins_early = False

    def beginning(self, *, num_prompt_tokens: int, num_cached_tokens: int) -> bytes:  # noqa: ARG002 - nothing of them
        return b""

    async def opening(self, choice: Choice) -> bytes:
        if not self._request.return_token_ids or choice.index > 0:
            return b""
        return self._event([], prompt_token_ids=choice.output.prompt_token_ids)

    def text(self, choice: Choice) -> bytes:
        return self._event([_choice(choice, self._request, self._params)])

    def finish(self, choice: Choice) -> bytes:  # noqa: ARG002 - told with the last tokens
        return b""

    def closing(self, usage: Usage) -> bytes:
        return (self._event([], usage=usage) if wants_usage(self._request) else b"") + DONE

    def failure(self, error: HeadraceError) -> bytes:
        return encode_event(error_body(error))

    def _event(
        self,
        choices: list[GenerateChoice],
        *,
        prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET,
        usage: Usage | msgspec.UnsetType = msgspec.UNSET,
    ) -> bytes:
        chunk = GenerateChunk(
            request_id=self._head.id,
            output_mode=self._request.output_mode,
            choices=choices,
            prompt_token_ids=prompt_token_ids,
            usage=usage,
        )
        return encode_event(self._encode(chunk))
