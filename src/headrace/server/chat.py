"""/v1/chat/completions: messages in, one assistant message out."""

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from headrace.engine.outputs import CompletionOutput
from headrace.errors import InvalidRequestError
from headrace.openai import unbuilt
from headrace.openai.checks import check_messages, wants_generation_prompt
from headrace.openai.decode import RequestDecoder
from headrace.openai.schema.chat import (
    AssistantMessage,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionRequest,
    Delta,
)
from headrace.openai.schema.usage import Usage
from headrace.openai.sse import encode_event
from headrace.server.generation_api import AnswerHead, Chunks, Prompt, stop_reason
from headrace.server.serving import Serving
from headrace.tokenization import ChatPrompt


class ChatApi:
    id_prefix: ClassVar[str] = "chatcmpl"
    prompt_param: ClassVar[str] = "messages"

    def __init__(self) -> None:
        self._decoder = RequestDecoder(ChatCompletionRequest, unbuilt=unbuilt.CHAT)

    def decode(self, body: bytes) -> ChatCompletionRequest:
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

    def answer(self, head: AnswerHead, outputs: Sequence[CompletionOutput], usage: Usage) -> bytes:
        choices = [
            ChatChoice(
                index=index,
                message=AssistantMessage(content=output.text),
                finish_reason=output.finish_reason,
                stop_reason=stop_reason(output),
            )
            for index, output in enumerate(outputs)
        ]
        answer = ChatCompletion(id=head.id, created=head.created, model=head.model, choices=choices, usage=usage)
        return msgspec.json.encode(answer)

    def chunks(self, head: AnswerHead) -> Chunks:
        return _ChatChunks(head)


def chat_prompt(request: ChatCompletionRequest) -> ChatPrompt:
    """What the model's template is to render. Raises InvalidRequestError."""
    messages = request.messages or []
    check_messages(messages)
    return ChatPrompt(
        messages=messages,
        add_generation_prompt=wants_generation_prompt(
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=request.continue_final_message,
        ),
        continue_final_message=bool(request.continue_final_message),
        template_kwargs=request.chat_template_kwargs,
    )


class _ChatChunks:
    """The role goes first, alone; the finish reason goes last, alone."""

    def __init__(self, head: AnswerHead) -> None:
        self._head = head
        self._encode = msgspec.json.Encoder().encode

    def opening(self, index: int) -> bytes:
        return self._event(ChatChunkChoice(index=index, delta=Delta(role="assistant", content="")))

    def text(self, index: int, text: str) -> bytes:
        return self._event(ChatChunkChoice(index=index, delta=Delta(content=text)))

    def finish(self, index: int, output: CompletionOutput) -> bytes:
        return self._event(
            ChatChunkChoice(
                index=index, delta=Delta(), finish_reason=output.finish_reason, stop_reason=stop_reason(output)
            )
        )

    def usage(self, usage: Usage) -> bytes:
        chunk = self._chunk([])
        chunk.usage = usage
        return encode_event(self._encode(chunk))

    def _event(self, choice: ChatChunkChoice) -> bytes:
        return encode_event(self._encode(self._chunk([choice])))

    def _chunk(self, choices: list[ChatChunkChoice]) -> ChatCompletionChunk:
        head = self._head
        return ChatCompletionChunk(id=head.id, created=head.created, model=head.model, choices=choices)
