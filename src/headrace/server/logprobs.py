"""The engine's log probabilities in the routes' forms. Pure."""

from collections.abc import Sequence

from headrace.engine.outputs import Logprob, PositionLogprobs
from headrace.openai.schema.generate import GeneratedLogprob, GeneratedLogprobs, TokenLogprob
from headrace.openai.schema.logprobs import (
    ChatLogprobs,
    ChatTokenLogprob,
    ChatTopLogprob,
    CompletionLogprobs,
    PromptLogprob,
    PromptLogprobs,
)

_LEAST = -9999.0
"""Stands for minus infinity, which JSON cannot say; vLLM's number."""


def chat_logprobs(positions: Sequence[PositionLogprobs], *, num_top: int) -> ChatLogprobs:
    """One entry for each token, with the `num_top` likeliest ones beside it."""
    return ChatLogprobs(content=[_chat_token(position, num_top=num_top) for position in positions])


def completion_logprobs(
    token_ids: Sequence[int], positions: Sequence[PositionLogprobs | None], *, first_offset: int, first_text: str = ""
) -> CompletionLogprobs:
    """`first_offset` is where the first token's text begins. The first token of a prompt has null for its log
    probability, which nobody knows; `first_text` is its text."""
    result = CompletionLogprobs(text_offset=[], token_logprobs=[], tokens=[], top_logprobs=[])
    offset = first_offset
    for token_id, position in zip(token_ids, positions, strict=True):
        own = position[token_id] if position is not None else Logprob(0.0, None, first_text)
        text = own.decoded_token or ""
        result.text_offset.append(offset)
        result.tokens.append(text)
        result.token_logprobs.append(_sayable(own.logprob) if position is not None else None)
        result.top_logprobs.append(_by_text(position) if position is not None else None)
        offset += len(text)
    return result


def generated_logprobs(positions: Sequence[PositionLogprobs]) -> GeneratedLogprobs:
    """By token ids alone."""
    return GeneratedLogprobs(content=[_generated_token(position) for position in positions])


def prompt_logprobs(positions: Sequence[PositionLogprobs | None]) -> PromptLogprobs:
    return [
        {
            token_id: PromptLogprob(logprob=_sayable(one.logprob), rank=one.rank, decoded_token=one.decoded_token)
            for token_id, one in position.items()
        }
        if position is not None
        else None
        for position in positions
    ]


def _chat_token(position: PositionLogprobs, *, num_top: int) -> ChatTokenLogprob:
    own, *_ = position.values()
    likeliest = sorted((one for one in position.values() if _is_among(one, num_top)), key=lambda one: one.rank or 0)
    text = own.decoded_token or ""
    return ChatTokenLogprob(
        token=text,
        logprob=_sayable(own.logprob),
        bytes=list(text.encode()),
        top_logprobs=[_chat_top(one) for one in likeliest],
    )


def _generated_token(position: PositionLogprobs) -> GeneratedLogprob:
    told = [
        TokenLogprob(token_id=token_id, logprob=_sayable(one.logprob), rank=one.rank)
        for token_id, one in position.items()
    ]
    own = told[0]
    return GeneratedLogprob(token_id=own.token_id, logprob=own.logprob, rank=own.rank, top_logprobs=told)


def _is_among(one: Logprob, num_top: int) -> bool:
    return one.rank is not None and one.rank <= num_top


def _chat_top(one: Logprob) -> ChatTopLogprob:
    text = one.decoded_token or ""
    return ChatTopLogprob(token=text, logprob=_sayable(one.logprob), bytes=list(text.encode()))


def _by_text(position: PositionLogprobs) -> dict[str, float]:
    """Of tokens with the same text the likeliest counts."""
    found: dict[str, float] = {}
    for one in position.values():
        text = one.decoded_token or ""
        found[text] = max(_sayable(one.logprob), found.get(text, _LEAST))
    return found


def _sayable(logprob: float) -> float:
    return max(logprob, _LEAST)
