"""Counts a call's prompt tokens exactly, off the event loop and within a time budget.

A count that cannot be had in time is no reason to refuse anybody: the call goes on without, and says why.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, TypeAlias

import msgspec

from headrace.errors import ContextLengthError, HeadraceError, OverloadedError, RequestError
from headrace.gateway.identify import Call, CallFields, Route
from headrace.gateway.tokenizers import ModelTokenizers
from headrace.tokenization import ChatPrompt, TokenIds, TokenizationService
from headrace.tokenization.tokenizer import pack_token_ids

_TokenId: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
_TEXTS = msgspec.json.Decoder(str | list[str | _TokenId | list[_TokenId]])
_TOKEN_IDS = msgspec.json.Decoder(list[_TokenId])
_MESSAGES = msgspec.json.Decoder(list[dict[str, object]])
_OBJECT = msgspec.json.Decoder(dict[str, object])
_MAX_TEXTS = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptCount:
    """How many prompt tokens a call has, or why that is not known."""

    total: int | None = None
    longest: int | None = None
    """Of the longest prompt, where a call brings several; that one must fit the context."""
    num_prompts: int = 1
    why: str = "exact"
    token_ids: tuple[TokenIds, ...] = field(default=(), repr=False, compare=False)
    """Of each prompt; none where they are not known."""


class PromptCounter:
    """Counts with the model's own tokenizer and chat template."""

    def __init__(self, service: TokenizationService, tokenizers: ModelTokenizers, *, timeout_s: float) -> None:
        self._service = service
        self._tokenizers = tokenizers
        self._timeout_s = timeout_s

    async def count(self, call: Call) -> PromptCount:
        """The count. What is wrong with a prompt is for the engine to say, but for one so long that it need not be
        counted: that raises ContextLengthError."""
        if call.route in {Route.TOKENIZE, Route.DETOKENIZE}:
            return PromptCount(why="not_needed")
        try:
            if (given := _given_token_ids(call)) is not None:
                return _count_of(given)
            async with asyncio.timeout(self._timeout_s):
                if (why := await self._tokenizers.why_not_ready(call.model)) is not None:
                    return PromptCount(why=why)
                return _count_of([await self._encode(call, prompt) for prompt in _prompts(call)])
        except TimeoutError:
            return PromptCount(why="tokenize_timeout")
        except OverloadedError:
            return PromptCount(why="tokenize_saturated")
        except ContextLengthError as error:
            error.param = call.prompt_param
            raise
        except (RequestError, msgspec.MsgspecError):
            return PromptCount(why="prompt_not_understood")
        except HeadraceError:
            return PromptCount(why="tokenize_error")

    async def _encode(self, call: Call, prompt: str | ChatPrompt) -> TokenIds:
        adds = call.fields.add_special_tokens is not False  # engines add them to plain prompts unless told
        limit = call.card.max_model_len if call.fields.truncate_prompt_tokens is None else None
        encoded = await self._service.encode(prompt, model=call.model, add_special_tokens=adds, max_tokens=limit)
        return encoded.token_ids


def _count_of(prompts: Sequence[TokenIds]) -> PromptCount:
    counts = [len(token_ids) for token_ids in prompts]
    longest = max(counts, default=0)
    return PromptCount(total=sum(counts), longest=longest, num_prompts=len(counts), token_ids=tuple(prompts))


def _given_token_ids(call: Call) -> list[TokenIds] | None:
    """The prompts that come as token ids, so that nothing is to be encoded."""
    fields = call.fields
    if fields.prompt_token_ids and fields.prompt_token_ids != b"null":
        return [pack_token_ids(_TOKEN_IDS.decode(fields.prompt_token_ids))]
    if call.route is Route.CHAT:
        return None
    texts = _TEXTS.decode(_plain_prompt(call))
    if isinstance(texts, str) or not texts or isinstance(texts[0], str):
        return None
    if isinstance(texts[0], int):
        return [pack_token_ids([one for one in texts if isinstance(one, int)])]
    return [pack_token_ids(ids) for ids in texts if isinstance(ids, list)]


def _prompts(call: Call) -> list[str | ChatPrompt]:
    if call.route is Route.CHAT:
        return [_chat_prompt(call.fields)]
    texts = _TEXTS.decode(_plain_prompt(call))
    prompts: list[str | ChatPrompt] = (
        [texts] if isinstance(texts, str) else [one for one in texts if isinstance(one, str)]
    )
    if len(prompts) > _MAX_TEXTS:
        raise RequestError(f"{len(prompts)} prompts are more than are counted")
    return prompts


def _plain_prompt(call: Call) -> msgspec.Raw:
    return call.fields.input if call.route is Route.EMBEDDINGS else call.fields.prompt


def _chat_prompt(fields: CallFields) -> ChatPrompt:
    if fields.chat_template is not None:
        raise RequestError("a chat template of the request's own is not rendered here")
    if fields.add_special_tokens:
        raise RequestError("special tokens before what a template wrote are not counted here")
    tools = fields.tools if fields.tools and fields.tools != b"null" else None
    kwargs = fields.chat_template_kwargs
    return ChatPrompt(
        messages=_MESSAGES.decode(fields.messages),
        tools=_MESSAGES.decode(tools) if tools is not None else None,
        add_generation_prompt=fields.add_generation_prompt is not False,
        continue_final_message=bool(fields.continue_final_message),
        template_kwargs=_OBJECT.decode(kwargs) if kwargs and kwargs != b"null" else None,
    )
