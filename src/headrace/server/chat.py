"""/v1/chat/completions: messages in, one assistant message out."""

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from headrace.engine.sampling_checks import check_whole
from headrace.engine.sampling_params import MAX_LOGPROBS
from headrace.errors import HeadraceError, InvalidRequestError
from headrace.openai import unbuilt
from headrace.openai.checks import check_logprobs, check_messages, wants_generation_prompt, wants_usage
from headrace.openai.decode import RequestDecoder
from headrace.openai.errors import error_body
from headrace.openai.long_strings import Body
from headrace.openai.schema.chat import (
    AssistantMessage,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionRequest,
    Delta,
)
from headrace.openai.schema.logprobs import ChatLogprobs, PromptLogprobs
from headrace.openai.schema.usage import Usage
from headrace.openai.sse import DONE, encode_event
from headrace.server.generation_api import AnswerHead, Choice, Chunks, Prompt, stop_reason
from headrace.server.logprobs import chat_logprobs, prompt_logprobs
from headrace.server.serving import Serving
from headrace.server.structured import SCHEMA_PARAM
from headrace.server.tool_calls import (
    AnswerParsers,
    ToolSupport,
    assistant_message,
    finish_reason,
    requested_tools,
)
from headrace.tokenization import ChatPrompt


class ChatApi:
    id_prefix: ClassVar[str] = "chatcmpl"
    prompt_param: ClassVar[str] = "messages"
    schema_param: ClassVar[str] = SCHEMA_PARAM

    def __init__(self) -> None:
        self._decoder = RequestDecoder(ChatCompletionRequest, unbuilt=unbuilt.CHAT)

    def decode(self, body: Body) -> ChatCompletionRequest:
        return self._decoder.decode(body)

    def max_tokens(self, request: ChatCompletionRequest) -> int | None:
        return request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens

    async def tokenize(self, request: ChatCompletionRequest, serving: Serving) -> Sequence[Prompt]:
        if request.prompt_token_ids is not None:
            if not request.prompt_token_ids:
                raise InvalidRequestError("prompt_token_ids must not be empty", param="prompt_token_ids")
            return [request.prompt_token_ids]
        prompt = chat_prompt(request)
        encoded = await serving.engine.tokenization.encode(prompt, model=serving.model.served_model_name)
        return [encoded.token_ids]

    def logprobs(self, request: ChatCompletionRequest) -> int | None:
        wants_logprobs = bool(request.logprobs)
        check_logprobs(request, top_logprobs=request.top_logprobs, wants_logprobs=wants_logprobs)
        if request.top_logprobs is not None:  # the engine knows it by another name
            check_whole("top_logprobs", request.top_logprobs, minimum=0, maximum=MAX_LOGPROBS)
        return (request.top_logprobs or 0) if wants_logprobs else None

    def prompt_logprobs(self, request: ChatCompletionRequest) -> int | None:
        return request.prompt_logprobs

    async def answer(
        self,
        head: AnswerHead,
        request: ChatCompletionRequest,
        choices: Sequence[Choice],
        usage: Usage,
        serving: Serving,
    ) -> bytes:
        answer = ChatCompletion(
            id=head.id,
            created=head.created,
            model=head.model,
            choices=[await finished_choice(choice, request, serving.tools) for choice in choices],
            usage=usage,
            prompt_logprobs=_prompt_logprobs(choices),
        )
        return msgspec.json.encode(answer)

    def chunks(
        self,
        head: AnswerHead,
        request: ChatCompletionRequest,
        serving: Serving,
    ) -> Chunks:
        tools = requested_tools(request)
        return _ChatChunks(head, request, None if tools is None else AnswerParsers(tools, serving.tools))


async def finished_choice(choice: Choice, request: ChatCompletionRequest, support: ToolSupport) -> ChatChoice:
    """A whole answer, read for the calls in it."""
    tools = requested_tools(request)
    completion = choice.completion
    message = AssistantMessage(content=completion.text)
    reason: str | None = completion.finish_reason
    if tools is not None:
        message = await assistant_message(completion.text, tools, support)
        reason = finish_reason(reason, tools, has_calls=bool(message.tool_calls))
    return ChatChoice(
        index=choice.index,
        message=message,
        logprobs=_logprobs(choice, request),
        finish_reason=reason,
        stop_reason=stop_reason(completion),
    )


def _logprobs(choice: Choice, request: ChatCompletionRequest) -> ChatLogprobs | None:
    if choice.completion.logprobs is None:
        return None
    return chat_logprobs(choice.completion.logprobs, num_top=request.top_logprobs or 0)


def _prompt_logprobs(choices: Sequence[Choice]) -> PromptLogprobs | msgspec.UnsetType:
    told = choices[0].output.prompt_logprobs
    return prompt_logprobs(told) if told is not None else msgspec.UNSET


def chat_prompt(request: ChatCompletionRequest) -> ChatPrompt:
    """What the model's template is to render. Raises InvalidRequestError."""
    messages = request.messages or []
    check_messages(messages)
    return ChatPrompt(
        messages=messages,
        tools=request.tools,
        add_generation_prompt=wants_generation_prompt(
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=request.continue_final_message,
        ),
        continue_final_message=bool(request.continue_final_message),
        template_kwargs=request.chat_template_kwargs,
    )


class _ChatChunks:
    """The role goes first, alone; the finish reason goes last, alone."""

    def __init__(self, head: AnswerHead, request: ChatCompletionRequest, parsers: AnswerParsers | None) -> None:
        """With `parsers`, texts are looked through for tool calls."""
        self._head = head
        self._parsers = parsers
        self._request = request
        self._encode = msgspec.json.Encoder().encode

    begins_early = False

    def beginning(self, *, num_prompt_tokens: int, num_cached_tokens: int) -> bytes:  # noqa: ARG002 - nothing of them
        return b""

    async def opening(self, choice: Choice) -> bytes:
        content = "" if self._parsers is None else None  # it may yet be calls alone
        return self._event(ChatChunkChoice(index=choice.index, delta=Delta(role="assistant", content=content)))

    def text(self, choice: Choice) -> bytes:
        if not choice.has_text:
            return b""
        text, logprobs = choice.completion.text, _logprobs(choice, self._request)
        delta = Delta(content=text) if self._parsers is None else self._parsers.feed(choice.index, text)
        if delta is None and logprobs is None:
            return b""
        return self._event(ChatChunkChoice(index=choice.index, delta=delta or Delta(), logprobs=logprobs))

    def finish(self, choice: Choice) -> bytes:
        completion = choice.completion
        held = b""
        reason: str | None = completion.finish_reason
        if self._parsers is not None:
            if (delta := self._parsers.finish(choice.index)) is not None:
                held = self._event(ChatChunkChoice(index=choice.index, delta=delta))
            reason = self._parsers.finish_reason(choice.index, reason)
        return held + self._event(
            ChatChunkChoice(
                index=choice.index,
                delta=Delta(),
                finish_reason=reason,
                stop_reason=stop_reason(completion),
            )
        )

    def closing(self, usage: Usage) -> bytes:
        if not wants_usage(self._request):
            return DONE
        chunk = self._chunk([])
        chunk.usage = usage
        return encode_event(self._encode(chunk)) + DONE

    def failure(self, error: HeadraceError) -> bytes:
        return encode_event(error_body(error))

    def _event(self, choice: ChatChunkChoice) -> bytes:
        return encode_event(self._encode(self._chunk([choice])))

    def _chunk(self, choices: list[ChatChunkChoice]) -> ChatCompletionChunk:
        head = self._head
        return ChatCompletionChunk(id=head.id, created=head.created, model=head.model, choices=choices)
