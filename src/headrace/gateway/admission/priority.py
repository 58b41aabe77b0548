"""Which class of the queue a request belongs to. Pure."""

from typing import Literal, get_args

from headrace.errors import InvalidRequestError
from headrace.gateway.http.head_facts import Headers, first_fields
from headrace.gateway.http.own_headers import PRIORITY

PriorityClass = Literal["interactive", "normal", "batch"]

PRIORITIES: tuple[PriorityClass, ...] = get_args(PriorityClass)
"""The first goes first."""


def class_of(
    *, asked: bytes | None, allowed: PriorityClass, num_prompt_tokens: int, long_prompt_tokens: int | None
) -> PriorityClass:
    """The lowest of what the request asks for in its header, what its key allows, and what its length makes of it.

    A header can only lower: whoever could raise himself would. Raises InvalidRequestError for an unknown class.
    """
    classes = [allowed]
    if asked is not None:
        classes.append(_parse(asked))
    if long_prompt_tokens is not None and num_prompt_tokens > long_prompt_tokens:
        classes.append("batch")
    return max(classes, key=PRIORITIES.index)


def asked_class(headers: Headers) -> bytes | None:
    """What a request's header asks for; None for nothing."""
    return first_fields(headers).get(PRIORITY)


def _parse(text: bytes) -> PriorityClass:
    word = text.decode("latin-1").strip().lower()
    for name in PRIORITIES:
        if word == name:
            return name
    raise InvalidRequestError(
        f"{PRIORITY.decode()} is {word[:40]!r}; give one of {', '.join(PRIORITIES)}.", param=PRIORITY.decode()
    )
