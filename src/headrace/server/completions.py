"""/v1/completions: prompts in, a continuation of each out."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import msgspec

from headrace.engine.outputs import CompletionOutput, FinishReason, PositionLogprobs, RequestOutput
from headrace.errors import HeadraceError, InvalidRequestError, UnsupportedError
from headrace.openai import unbuilt
from headrace.openai.checks import check_logprobs, prompt_list, wants_usage
from headrace.openai.decode import RequestDecoder
from headrace.openai.errors import error_body
from headrace.openai.long_strings import Body
from headrace.openai.schema.completions import Completion, CompletionChoice, CompletionRequest
from headrace.openai.schema.logprobs import CompletionLogprobs
from headrace.openai.schema.usage import Usage
from headrace.openai.sse import DONE, encode_event
from headrace.server.generation_api import AnswerHead, Choice, Chunks, Prompt, stop_reason
from headrace.server.logprobs import completion_logprobs, prompt_logprobs
from headrace.server.serving import Serving
from headrace.server.structured import SCHEMA_PARAM


class CompletionsApi:
    id_prefix: ClassVar[str] = "cmpl"
    prompt_param: ClassVar[str] = "prompt"
    schema_param: ClassVar[str] = SCHEMA_PARAM

    def __init__(self) -> None:
        self._decoder = RequestDecoder(CompletionRequest, unbuilt=unbuilt.COMPLETIONS)

    def decode(self, body: Body) -> CompletionRequest:
        return self._decoder.decode(body)

    def max_tokens(self, request: CompletionRequest) -> int | None:
        """The engine always generates; of a request for the echo alone, one token that nobody is told of."""
        if request.max_tokens == 0 and not request.echo:
            message = "max_tokens is 0, which only an echo answers; set echo to true, or max_tokens to 1 or more"
            raise InvalidRequestError(message, param="max_tokens")
        return 1 if request.max_tokens == 0 else request.max_tokens

    async def tokenize(self, request: CompletionRequest, serving: Serving) -> Sequence[Prompt]:
        prompts = prompt_list(request.prompt, max_prompts=serving.settings.max_prompts)
        return [await _token_ids(prompt, request, serving) for prompt in prompts]

    def logprobs(self, request: CompletionRequest) -> int | None:
        check_logprobs(request, top_logprobs=None, wants_logprobs=request.logprobs is not None)
        if request.echo and request.logprobs is not None and request.stream and (request.n or 1) > 1:
            message = "echo with logprobs in a stream is only supported for n=1; set stream to false"
            raise UnsupportedError(message, param="n")
        return request.logprobs

    def prompt_logprobs(self, request: CompletionRequest) -> int | None:
        """Those of an echoed prompt are part of the choice's."""
        return request.logprobs if request.prompt_logprobs is None and request.echo else request.prompt_logprobs

    async def answer(
        self, head: AnswerHead, request: CompletionRequest, choices: Sequence[Choice], usage: Usage, serving: Serving
    ) -> bytes:
        finished = [await _finished_choice(_told(choice, request), request, serving) for choice in choices]
        return msgspec.json.encode(_completion(head, finished, usage=_told_usage(usage, request)))

    def chunks(self, head: AnswerHead, request: CompletionRequest, serving: Serving) -> Chunks:
        return _CompletionChunks(head, request, serving)


async def echoed_prompt(choice: Choice, request: CompletionRequest, serving: Serving) -> str:
    """The text of the choice's prompt where it is to be repeated, else nothing."""
    if not request.echo:
        return ""
    if isinstance(request.prompt, str):
        return request.prompt
    given = request.prompt[choice.prompt_index]
    if isinstance(given, str):
        return given
    token_ids = choice.output.prompt_token_ids
    return await serving.engine.tokenization.decode(token_ids, model=serving.model.served_model_name)


async def _token_ids(prompt: str | list[int], request: CompletionRequest, serving: Serving) -> Prompt:
    if not isinstance(prompt, str):
        return prompt
    encoded = await serving.engine.tokenization.encode(
        prompt, model=serving.model.served_model_name, add_special_tokens=request.add_special_tokens is not False
    )
    return encoded.token_ids


def _told(choice: Choice, request: CompletionRequest) -> Choice:
    """`choice` without what was generated, where only the echo was asked for."""
    if request.max_tokens != 0:
        return choice
    given = choice.completion
    reason: FinishReason | None = "length" if given.is_finished else None
    logprobs: list[PositionLogprobs] | None = None if given.logprobs is None else []
    nothing = CompletionOutput(index=given.index, text="", token_ids=[], logprobs=logprobs, finish_reason=reason)
    return dataclasses.replace(choice, completion=nothing)


def _told_usage(usage: Usage, request: CompletionRequest) -> Usage:
    if request.max_tokens != 0:
        return usage
    return msgspec.structs.replace(usage, completion_tokens=0, total_tokens=usage.prompt_tokens)


async def _finished_choice(choice: Choice, request: CompletionRequest, serving: Serving) -> CompletionChoice:
    completion, output = choice.completion, choice.output
    told = output.prompt_logprobs
    return CompletionChoice(
        index=choice.index,
        text=await echoed_prompt(choice, request, serving) + completion.text,
        logprobs=await _logprobs(choice, request, serving),
        prompt_logprobs=prompt_logprobs(told) if request.prompt_logprobs is not None and told else msgspec.UNSET,
        finish_reason=completion.finish_reason,
        stop_reason=stop_reason(completion),
    )


async def _logprobs(choice: Choice, request: CompletionRequest, serving: Serving) -> CompletionLogprobs | None:
    """Of the whole text of a finished choice, an echoed prompt with it."""
    completion, output = choice.completion, choice.output
    if completion.logprobs is None:
        return None
    if not request.echo or output.prompt_logprobs is None:
        return completion_logprobs(completion.token_ids, completion.logprobs, first_offset=0)
    token_ids = [*output.prompt_token_ids, *completion.token_ids]
    positions = [*output.prompt_logprobs, *completion.logprobs]
    return completion_logprobs(token_ids, positions, first_offset=0, first_text=await _first_text(output, serving))


async def _prompt_logprobs(choice: Choice, request: CompletionRequest, serving: Serving) -> CompletionLogprobs | None:
    """Of an echoed prompt alone."""
    output = choice.output
    if request.logprobs is None or output.prompt_logprobs is None:
        return None
    first_text = await _first_text(output, serving)
    return completion_logprobs(output.prompt_token_ids, output.prompt_logprobs, first_offset=0, first_text=first_text)


async def _first_text(output: RequestOutput, serving: Serving) -> str:
    """Of the prompt's first token, which has no log probability to bring its text."""
    first = output.prompt_token_ids[:1]
    return await serving.engine.tokenization.decode(first, model=serving.model.served_model_name)


def _completion(
    head: AnswerHead, choices: list[CompletionChoice], *, usage: Usage | msgspec.UnsetType = msgspec.UNSET
) -> Completion:
    return Completion(id=head.id, created=head.created, model=head.model, choices=choices, usage=usage)


class _CompletionChunks:
    """Nothing opens a choice; its last chunk has no text and says why it ended."""

    def __init__(self, head: AnswerHead, request: CompletionRequest, serving: Serving) -> None:
        self._head = head
        self._request = request
        self._serving = serving
        self._encode = msgspec.json.Encoder().encode
        self._num_chars: dict[int, int] = {}
        """Of the tokens that each choice has told of."""

    begins_early = False

    def beginning(self, *, num_prompt_tokens: int, num_cached_tokens: int) -> bytes:  # noqa: ARG002 - nothing of them
        return b""

    async def opening(self, choice: Choice) -> bytes:
        text = await echoed_prompt(choice, self._request, self._serving)
        if not text:
            return b""
        logprobs = await _prompt_logprobs(choice, self._request, self._serving)
        self._note_told(choice, logprobs)
        return self._event([CompletionChoice(index=choice.index, text=text, logprobs=logprobs)])

    def text(self, choice: Choice) -> bytes:
        choice = _told(choice, self._request)
        if not choice.has_text:
            return b""
        return self._event(
            [CompletionChoice(index=choice.index, text=choice.completion.text, logprobs=self._logprobs(choice))]
        )

    def _logprobs(self, choice: Choice) -> CompletionLogprobs | None:
        completion = choice.completion
        if completion.logprobs is None:
            return None
        first_offset = self._num_chars.get(choice.index, 0)
        told = completion_logprobs(completion.token_ids, completion.logprobs, first_offset=first_offset)
        self._note_told(choice, told)
        return told

    def _note_told(self, choice: Choice, told: CompletionLogprobs | None) -> None:
        if told is not None:
            self._num_chars[choice.index] = self._num_chars.get(choice.index, 0) + sum(map(len, told.tokens))

    def finish(self, choice: Choice) -> bytes:
        completion = _told(choice, self._request).completion
        finished = CompletionChoice(
            index=choice.index,
            text="",
            finish_reason=completion.finish_reason,
            stop_reason=stop_reason(completion),
        )
        return self._event([finished])

    def closing(self, usage: Usage) -> bytes:
        if not wants_usage(self._request):
            return DONE
        last = _completion(self._head, [], usage=_told_usage(usage, self._request))
        return encode_event(self._encode(last)) + DONE

    def failure(self, error: HeadraceError) -> bytes:
        return encode_event(error_body(error))

    def _event(self, choices: list[CompletionChoice]) -> bytes:
        return encode_event(self._encode(_completion(self._head, choices)))
