"""/tokenize and /detokenize: the engine's own tokenizer over HTTP, with vLLM's bodies."""

from functools import partial

import msgspec
from starlette.types import Receive, Scope, Send

from headrace.aio.bridge import make_async
from headrace.errors import InvalidRequestError, UnsupportedError
from headrace.openai import unbuilt
from headrace.openai.checks import check_messages, wants_generation_prompt
from headrace.openai.decode import RequestDecoder
from headrace.openai.schema.tokenize import DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse
from headrace.server.cut import admitted, disconnected, leave_when
from headrace.server.intake import read_body
from headrace.server.serving import Serving
from headrace.server.writer import Writer
from headrace.tokenization import ChatPrompt


class Tokenize:
    """Text or messages to token ids. No length limit: counting is what it is for."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._decoder = RequestDecoder(TokenizeRequest, unbuilt=unbuilt.TOKENIZE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        serving = self._serving
        async with admitted(serving.live, scope, receive):
            request = self._decoder.decode(await read_body(scope, receive, serving.settings))
            serving.check_model(request.model)
            async with leave_when(partial(disconnected, receive), name="disconnect watch"):
                answer = await self._tokenize(request)
                writer = Writer(send, timeout_s=serving.settings.write_timeout_s)
                await writer.send_json(msgspec.json.encode(answer))

    async def _tokenize(self, request: TokenizeRequest) -> TokenizeResponse:
        model = self._serving.model
        service = self._serving.engine.tokenization
        prompt = _prompt(request)
        encoded = await service.encode(
            prompt, model=model.served_model_name, add_special_tokens=request.add_special_tokens is not False
        )
        token_strs = None
        if request.return_token_strs:
            token_strs = await make_async(service.tokenizer(model.served_model_name).token_strings)(encoded.token_ids)
        return TokenizeResponse(
            count=len(encoded.token_ids),
            max_model_len=model.max_model_len,
            tokens=encoded.token_ids.tolist(),
            token_strs=token_strs,
        )


def _prompt(request: TokenizeRequest) -> str | ChatPrompt:
    if (request.prompt is None) == (request.messages is None):
        raise InvalidRequestError("give either prompt or messages", param="prompt")
    if request.prompt is not None:
        return request.prompt
    if request.add_special_tokens:
        raise UnsupportedError(
            "add_special_tokens=true is not supported with messages: the template writes the special tokens itself",
            param="add_special_tokens",
        )
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


class Detokenize:
    """Token ids to text, special tokens kept."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._decoder = RequestDecoder(DetokenizeRequest, unbuilt={})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        serving = self._serving
        async with admitted(serving.live, scope, receive):
            request = self._decoder.decode(await read_body(scope, receive, serving.settings))
            serving.check_model(request.model)
            _check_vocabulary(request.tokens, serving.model.vocab_size)
            async with leave_when(partial(disconnected, receive), name="disconnect watch"):
                text = await serving.engine.tokenization.decode(request.tokens, model=serving.model.served_model_name)
                writer = Writer(send, timeout_s=serving.settings.write_timeout_s)
                await writer.send_json(msgspec.json.encode(DetokenizeResponse(text)))


def _check_vocabulary(token_ids: list[int], vocab_size: int) -> None:
    if token_ids and (largest := max(token_ids)) >= vocab_size:
        index = token_ids.index(largest)
        raise InvalidRequestError(
            f"tokens[{index}] is {largest}, but the model's largest token id is {vocab_size - 1}",
            param=f"tokens[{index}]",
        )
