"""Counts a call's prompt tokens exactly, off the event loop and within a time budget: with the model's own tokenizer
here, or at an endpoint that serves it.

A count that cannot be had in time is no reason to refuse anybody: the call goes on without, and says why.
"""

import asyncio
from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

from headrace.aio.rounds import RoundBatch
from headrace.errors import ContextLengthError, HeadraceError, OverloadedError, RequestError
from headrace.gateway.identify import Call
from headrace.gateway.prompt.remote_tokenizers import RemoteTokenizers, key_of
from headrace.gateway.prompt.texts import given_token_ids, prompts_of
from headrace.gateway.prompt.tokenizers import ModelTokenizers
from headrace.gateway.unreadable import UNREADABLE
from headrace.tokenization import ChatPrompt, TokenIds, TokenizationService
from headrace.tokenization.remote.fallback import reason_of

TokenizerMode: TypeAlias = Literal["local", "remote", "auto"]
"""Whose tokenizer counts: the gateway's, an endpoint's, or the gateway's where it has the model's and else an
endpoint's."""


class PromptCount(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """How many prompt tokens a call has, or why that is not known."""

    total: int | None = None
    longest: int | None = None
    """Of the longest prompt, where a call brings several; that one must fit the context."""
    num_prompts: int = 1
    why: str = "exact"
    """One word: whose count it is, `exact` being the gateway's own, or why there is none."""
    token_ids: tuple[TokenIds, ...] = ()
    """Of each prompt; none where they are not known."""

    def __repr__(self) -> str:
        return f"PromptCount({self.total} tokens, num_prompts={self.num_prompts}, {self.why})"


class PromptCounter:
    """Counts with the model's own tokenizer and chat template. Without `remote` only those that are loaded here."""

    def __init__(
        self,
        service: TokenizationService,
        tokenizers: ModelTokenizers,
        *,
        timeout_s: float,
        remote: RemoteTokenizers | None = None,
        mode: TokenizerMode = "local",
    ) -> None:
        self._service = service
        self._tokenizers = tokenizers
        self._timeout_s = timeout_s
        self._remote = remote
        self._mode: TokenizerMode = mode
        self._count_now = RoundBatch(self._counted_now)

    async def count(self, call: Call) -> PromptCount:
        """The count. What is wrong with a prompt is for the engine to say, but for one so long that it need not be
        counted: that raises ContextLengthError."""
        traits = call.route.traits
        if not traits.is_counted:
            return PromptCount(why="not_needed" if traits.is_free else "form_not_counted")
        try:
            if (given := given_token_ids(call)) is not None:
                return _count_of(given)
            prompts = _Prompts(call)
            if (counted := await self._count_now(prompts)) is not None:
                return counted
            async with asyncio.timeout(self._timeout_s):
                return await self._encode_all(call, prompts)
        except TimeoutError:
            return PromptCount(why="tokenize_timeout")
        except (HeadraceError, *UNREADABLE) as error:
            return _uncounted(call, error)

    def _counted_now(self, prompts: "_Prompts") -> PromptCount | None:
        """The count where nobody need wait for it, as with most prompts that are short; else None."""
        call = prompts.call
        if self._mode == "remote" and self._remote is not None:
            return None
        found = self._tokenizers.find_now(call.model)
        if found is None or found.why_not is not None or len(wanted := prompts.found()) != 1:
            return None
        encoded = self._service.encode_now(
            wanted[0], model=found.name, add_special_tokens=_adds_special_tokens(call), max_tokens=_limit_of(call)
        )
        if encoded is None:
            return None
        num_tokens = len(encoded.token_ids)
        return PromptCount(total=num_tokens, longest=num_tokens, token_ids=(encoded.token_ids,))

    async def _encode_all(self, call: Call, prompts: "_Prompts") -> PromptCount:
        if self._mode != "remote" or self._remote is None:
            found = await self._tokenizers.find(call.model)
            if found.why_not is None:
                return _count_of([await self._encode(call, prompt, name=found.name) for prompt in prompts.found()])
            if self._remote is None:
                return PromptCount(why=found.why_not)
        return await self._ask(call, prompts, self._remote)

    async def _encode(self, call: Call, prompt: str | ChatPrompt, *, name: str) -> TokenIds:
        encoded = await self._service.encode(
            prompt, model=name, add_special_tokens=_adds_special_tokens(call), max_tokens=_limit_of(call)
        )
        return encoded.token_ids

    async def _ask(self, call: Call, prompts: "_Prompts", remote: RemoteTokenizers) -> PromptCount:
        """Count at an endpoint."""
        key = key_of(call.route.value, call.model, call.request.body)
        if (kept := remote.find(key)) is not None:
            return _count_of(kept, why="remote")
        why = "remote"
        counted: list[TokenIds] = []
        try:
            for prompt in prompts.found():
                encoded = await remote.encode(
                    prompt,
                    model=call.model,
                    add_special_tokens=_adds_special_tokens(call),
                    timeout_s=self._timeout_s,
                )
                counted.append(encoded.token_ids)
                if encoded.fallback_reason is not None:
                    why = f"local_after_{encoded.fallback_reason}"
        except HeadraceError as error:
            if (reason := reason_of(error)) is None:
                raise
            return PromptCount(why=f"remote_{reason}")
        if why == "remote":
            remote.keep(key, counted)
        return _count_of(counted, why=why)


class _Prompts:
    """What of a call is to be encoded, read when it is first wanted, and once."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self._found: list[str | ChatPrompt] | None = None

    def found(self) -> list[str | ChatPrompt]:
        """Raises as `prompts_of`."""
        if self._found is None:
            self._found = prompts_of(self.call)
        return self._found


def _adds_special_tokens(call: Call) -> bool:
    """Engines add them to plain prompts unless told."""
    return call.fields.add_special_tokens is not False


def _limit_of(call: Call) -> int | None:
    """More tokens than these need not be counted."""
    return call.card.max_model_len if call.fields.truncate_prompt_tokens is None else None


def _uncounted(call: Call, error: Exception) -> PromptCount:
    """Why there is no count; a prompt that is too long for the model raises."""
    match error:
        case ContextLengthError():
            error.param = call.prompt_param
            raise error
        case OverloadedError():
            return PromptCount(why="tokenize_saturated")
        case RequestError() | msgspec.MsgspecError() | UnicodeDecodeError() | RecursionError():
            return PromptCount(why="prompt_not_understood")
    return PromptCount(why="tokenize_error")


def _count_of(prompts: Sequence[TokenIds], *, why: str = "exact") -> PromptCount:
    counts = [len(token_ids) for token_ids in prompts]
    longest = max(counts, default=0)
    return PromptCount(total=sum(counts), longest=longest, num_prompts=len(counts), why=why, token_ids=tuple(prompts))
