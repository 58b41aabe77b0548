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
from headrace.server.token_ids import TokenIdWriter, check_vocabulary
from headrace.server.turns import Turns
from headrace.server.writer import Writer
from headrace.tokenization import ChatPrompt, TokenIds

_TOKENS_PER_PIECE = 1 << 14
"""Written as JSON in about 0.2 ms, their strings in a millisecond. More at once would hold the event loop."""


class Tokenize:
    """Text or messages to token ids. No length limit: counting is what it is for."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._decoder = RequestDecoder(TokenizeRequest, unbuilt=unbuilt.TOKENIZE)
        self._turns = Turns(per_round=1)
        self._writer = TokenIdWriter(serving.model.vocab_size)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        serving = self._serving
        async with admitted(serving.live, scope, receive):
            request = self._decoder.decode(await read_body(scope, receive, serving.settings))
            serving.check_model(request.model)
            async with leave_when(partial(disconnected, receive), name="disconnect watch"):
                token_ids = await self._token_ids(request)
                answer = TokenizeResponse(
                    count=len(token_ids), max_model_len=serving.model.max_model_len, tokens=[], token_strs=None
                )
                writer = Writer(send, timeout_s=serving.settings.write_timeout_s)
                if len(token_ids) <= _TOKENS_PER_PIECE:
                    answer.tokens = token_ids.tolist()
                    answer.token_strs = await self._strings(token_ids) if request.return_token_strs else None
                    await writer.send_json(msgspec.json.encode(answer))
                else:
                    await self._send_long(answer, token_ids, writer, has_strings=bool(request.return_token_strs))

    async def _token_ids(self, request: TokenizeRequest) -> TokenIds:
        encoded = await self._serving.engine.tokenization.encode(
            _prompt(request),
            model=self._serving.model.served_model_name,
            add_special_tokens=request.add_special_tokens is not False,
        )
        return encoded.token_ids

    async def _strings(self, token_ids: TokenIds) -> list[str]:
        tokenizer = self._serving.engine.tokenization.tokenizer(self._serving.model.served_model_name)
        return await make_async(tokenizer.token_strings)(token_ids)

    async def _send_long(
        self, answer: TokenizeResponse, token_ids: TokenIds, writer: Writer, *, has_strings: bool
    ) -> None:
        """The same bytes in pieces, a piece of one answer in each round of the loop."""
        before, _, after = msgspec.json.encode(answer).partition(b"[]")
        await writer.start({"content-type": "application/json"})
        await writer.write(before + b"[")
        for begin in range(0, len(token_ids), _TOKENS_PER_PIECE):
            await self._turns.take()
            piece = self._writer.write(token_ids[begin : begin + _TOKENS_PER_PIECE])
            await writer.write(b"," + piece if begin else piece)
        if has_strings:
            await writer.write(b"]" + after.removesuffix(b"null}") + b"[")
            await self._send_strings(token_ids, writer)
            after = b"}"
        await writer.end(b"]" + after)

    async def _send_strings(self, token_ids: TokenIds, writer: Writer) -> None:
        for begin in range(0, len(token_ids), _TOKENS_PER_PIECE):
            strings = await self._strings(token_ids[begin : begin + _TOKENS_PER_PIECE])
            await self._turns.take()
            piece = msgspec.json.encode(strings)[1:-1]
            await writer.write(b"," + piece if begin else piece)


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
            check_vocabulary(request.tokens, serving.model.vocab_size, param="tokens")
            async with leave_when(partial(disconnected, receive), name="disconnect watch"):
                text = await serving.engine.tokenization.decode(request.tokens, model=serving.model.served_model_name)
                writer = Writer(send, timeout_s=serving.settings.write_timeout_s)
                await writer.send_json(msgspec.json.encode(DetokenizeResponse(text)))
