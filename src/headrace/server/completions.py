"""/v1/completions: prompts in, a continuation of each out."""

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from headrace.engine.outputs import CompletionOutput
from headrace.openai import unbuilt
from headrace.openai.checks import prompt_list
from headrace.openai.decode import RequestDecoder
from headrace.openai.schema.completions import Completion, CompletionChoice, CompletionRequest
from headrace.openai.schema.usage import Usage
from headrace.openai.sse import encode_event
from headrace.server.generation_api import AnswerHead, Chunks, Prompt, stop_reason
from headrace.server.serving import Serving


class CompletionsApi:
    id_prefix: ClassVar[str] = "cmpl"
    prompt_param: ClassVar[str] = "prompt"

    def __init__(self) -> None:
        self._decoder = RequestDecoder(CompletionRequest, unbuilt=unbuilt.COMPLETIONS)

    def decode(self, body: bytes) -> CompletionRequest:
        return self._decoder.decode(body)

    def max_tokens(self, request: CompletionRequest) -> int | None:
        return request.max_tokens

    async def tokenize(self, request: CompletionRequest, serving: Serving) -> Sequence[Prompt]:
        prompts = prompt_list(request.prompt, max_prompts=serving.settings.max_prompts)
        return [await _token_ids(prompt, request, serving) for prompt in prompts]

    def answer(self, head: AnswerHead, outputs: Sequence[CompletionOutput], usage: Usage) -> bytes:
        choices = [_finished_choice(index, output, text=output.text) for index, output in enumerate(outputs)]
        return msgspec.json.encode(_completion(head, choices, usage=usage))

    def chunks(self, head: AnswerHead) -> Chunks:
        return _CompletionChunks(head)


async def _token_ids(prompt: str | list[int], request: CompletionRequest, serving: Serving) -> Prompt:
    if not isinstance(prompt, str):
        return prompt
    encoded = await serving.engine.tokenization.encode(
        prompt, model=serving.model.served_model_name, add_special_tokens=request.add_special_tokens is not False
    )
    return encoded.token_ids


def _finished_choice(index: int, output: CompletionOutput, *, text: str) -> CompletionChoice:
    return CompletionChoice(index=index, text=text, finish_reason=output.finish_reason, stop_reason=stop_reason(output))


def _completion(
    head: AnswerHead, choices: list[CompletionChoice], *, usage: Usage | msgspec.UnsetType = msgspec.UNSET
) -> Completion:
    return Completion(id=head.id, created=head.created, model=head.model, choices=choices, usage=usage)


class _CompletionChunks:
    """Nothing opens a choice; its last chunk has no text and says why it ended."""

    def __init__(self, head: AnswerHead) -> None:
        self._head = head
        self._encode = msgspec.json.Encoder().encode

    def opening(self, index: int) -> bytes:  # noqa: ARG002 - other routes need it
        return b""

    def text(self, index: int, text: str) -> bytes:
        return self._event([CompletionChoice(index=index, text=text)])

    def finish(self, index: int, output: CompletionOutput) -> bytes:
        return self._event([_finished_choice(index, output, text="")])

    def usage(self, usage: Usage) -> bytes:
        return encode_event(self._encode(_completion(self._head, [], usage=usage)))

    def _event(self, choices: list[CompletionChoice]) -> bytes:
        return encode_event(self._encode(_completion(self._head, choices)))
