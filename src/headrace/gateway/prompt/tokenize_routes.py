"""/tokenize, /detokenize and /v1/messages/count_tokens, answered with the model's tokenizer in place of an engine.

The answers are an engine's, byte for byte. What is not surely so goes to an engine: a field that is not read here, a
body that is in any way wrong (the engine's words are the right ones for it), a model without a tokenizer, a text that
engines may yet tidy up.
"""

import asyncio

import msgspec

from headrace.aio.bridge import make_async
from headrace.errors import HeadraceError, UnsupportedError
from headrace.gateway.identify import Call
from headrace.gateway.prompt.texts import prompt_of_chat, prompts_of
from headrace.gateway.prompt.tokenizers import ModelTokenizers
from headrace.gateway.routes import Route
from headrace.gateway.unreadable import UNREADABLE
from headrace.openai import unbuilt
from headrace.openai.decode import RequestDecoder
from headrace.openai.schema.anthropic import TokensCounted
from headrace.openai.schema.tokenize import DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse
from headrace.tokenization import ChatPrompt, TokenIds, TokenizationService

_TOKENIZE = RequestDecoder(TokenizeRequest, unbuilt={**unbuilt.TOKENIZE, "truncation_side": ()})
_DETOKENIZE = RequestDecoder(DetokenizeRequest, unbuilt={"skip_special_tokens": (False,)})
_TOKENS_PER_PIECE = 1 << 13
"""Written as JSON in about half a millisecond. More at once would hold the event loop."""
_NO_TOKENS = b'"tokens":[]'
_TIDIED = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")
"""What transformers writes without the space for tokenizers whose configuration says so, which is not read here."""


class TokenizeRoutes:
    """Answers what it can; the rest is for an endpoint. `is_on` False: everything is."""

    def __init__(
        self, service: TokenizationService, tokenizers: ModelTokenizers, *, timeout_s: float, is_on: bool
    ) -> None:
        self._service = service
        self._tokenizers = tokenizers
        self._timeout_s = timeout_s
        self._is_on = is_on
        self.num_answers = 0

    async def body_of(self, call: Call) -> bytes | None:
        """The answer to `call`; None where an endpoint must give it. Within the time-out; cancelled, it leaves nothing
        running."""
        if not self._is_on:
            return None
        try:
            async with asyncio.timeout(self._timeout_s):
                body = await self._answer(call)
        except (HeadraceError, TimeoutError, *UNREADABLE):
            return None
        self.num_answers += body is not None
        return body

    async def _answer(self, call: Call) -> bytes | None:
        found = await self._tokenizers.find(call.model)
        if found.why_not is not None:
            return None
        match call.route:
            case Route.TOKENIZE:
                return await self._tokenize(call, name=found.name)
            case Route.DETOKENIZE:
                return await self._detokenize(call, name=found.name)
            case Route.COUNT_TOKENS:
                (prompt,) = prompts_of(call)
                encoded = await self._service.encode(prompt, model=found.name)
                return msgspec.json.encode(TokensCounted(input_tokens=len(encoded.token_ids)))
        return None

    async def _tokenize(self, call: Call, *, name: str) -> bytes | None:
        if call.card.max_model_len is None:
            return None  # the answer repeats it
        request = _TOKENIZE.decode(call.request.body)
        prompt = _prompt_of(request)
        encoded = await self._service.encode(
            prompt, model=name, add_special_tokens=request.add_special_tokens is not False
        )
        token_strs = None
        if request.return_token_strs:
            token_strs = await make_async(self._service.tokenizer(name).token_strings)(encoded.token_ids)
        answer = TokenizeResponse(
            count=len(encoded.token_ids), max_model_len=call.card.max_model_len, tokens=[], token_strs=token_strs
        )
        return await _with_tokens(msgspec.json.encode(answer), encoded.token_ids)

    async def _detokenize(self, call: Call, *, name: str) -> bytes | None:
        token_ids = _DETOKENIZE.decode(call.request.body).tokens
        if token_ids and max(token_ids) >= self._service.tokenizer(name).vocab_size:
            return None
        text = await self._service.decode(token_ids, model=name)
        if any(pair in text for pair in _TIDIED):
            return None
        return msgspec.json.encode(DetokenizeResponse(text))

    def __repr__(self) -> str:
        return f"TokenizeRoutes({'on' if self._is_on else 'off'}, num_answers={self.num_answers})"


def _prompt_of(request: TokenizeRequest) -> str | ChatPrompt:
    """Raises UnsupportedError and InvalidRequestError for what is an endpoint's to judge."""
    if (request.prompt is None) == (request.messages is None):
        raise UnsupportedError("give either prompt or messages", param="prompt")
    if request.prompt is not None:
        return request.prompt
    if request.add_special_tokens:
        raise UnsupportedError("the template writes the special tokens itself", param="add_special_tokens")
    return prompt_of_chat(request)


async def _with_tokens(answer: bytes, token_ids: TokenIds) -> bytes:
    """`answer`, whose list of tokens is empty, with `token_ids` in it; other work goes on between its pieces."""
    before, _, after = answer.partition(_NO_TOKENS)
    pieces = [before, _NO_TOKENS[:-1]]
    for begin in range(0, len(token_ids), _TOKENS_PER_PIECE):
        if begin:
            pieces.append(b",")
            await asyncio.sleep(0)
        pieces.append(msgspec.json.encode(token_ids[begin : begin + _TOKENS_PER_PIECE].tolist())[1:-1])
    return b"".join([*pieces, _NO_TOKENS[-1:], after])
