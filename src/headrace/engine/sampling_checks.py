"""Checks of single values of sampling parameters. Each raises InvalidRequestError, naming the field and the value."""

import sys
from collections.abc import Sequence
from typing import TypeVar

from headrace.errors import InvalidRequestError

MAX_TOKEN_ID = 2**32 - 1

_MAX_WHOLE = 2**64 - 1
"""What the wire to the core takes."""

_MAX_TOKEN_IDS = 1 << 19
"""Named in one list; more than any vocabulary has."""
_MAX_BAD_WORDS = 1024
_MAX_BIASES = 1 << 16
"""Looked through on the event loop, in about 0.1 s."""

_MAX_STOPS = 1024
"""Stop strings, and token ids that stop."""
_MAX_STOP_CHARS = 16 * 1024
"""Of all stop strings together: to get ready to look for them takes a microsecond for each."""
_MAX_LOGIT_BIAS = 100.0

Item = TypeVar("Item")


def as_tuple(name: str, value: Sequence[Item] | None) -> tuple[Item, ...]:
    if value is None:
        return ()
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise InvalidRequestError(f"{name} must be a list, got {value!r}", param=name)
    return tuple(value)


def token_ids(name: str, value: Sequence[int]) -> tuple[int, ...]:
    """Without what is named twice, in order."""
    found = as_tuple(name, value)
    if len(found) > _MAX_TOKEN_IDS:
        raise InvalidRequestError(f"{name} holds {len(found)} ids, more than {_MAX_TOKEN_IDS}", param=name)
    for token_id in found:
        check_whole(name, token_id, minimum=0, maximum=MAX_TOKEN_ID)
    return tuple(dict.fromkeys(found))


def checked_bias(logit_bias: dict[int, float]) -> dict[int, float]:
    if not isinstance(logit_bias, dict):
        raise InvalidRequestError(f"logit_bias must be a dict, got {logit_bias!r:.80}", param="logit_bias")
    if len(logit_bias) > _MAX_BIASES:
        message = f"logit_bias holds {len(logit_bias)} ids, more than {_MAX_BIASES}"
        raise InvalidRequestError(message, param="logit_bias")
    for token_id, bias in logit_bias.items():
        check_whole("logit_bias", token_id, minimum=0, maximum=MAX_TOKEN_ID)
        check_number("logit_bias", bias)
    return {token_id: float(min(max(bias, -_MAX_LOGIT_BIAS), _MAX_LOGIT_BIAS)) for token_id, bias in logit_bias.items()}


def checked_stops(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    texts = (stop,) if isinstance(stop, str) else as_tuple("stop", stop)
    if any(not isinstance(text, str) or not text for text in texts):
        raise InvalidRequestError(f"stop must hold non-empty strings, got {stop!r:.80}", param="stop")
    num_chars = sum(map(len, texts))
    if len(texts) > _MAX_STOPS or num_chars > _MAX_STOP_CHARS:
        message = (
            f"stop holds {len(texts)} strings with {num_chars} characters together, more than {_MAX_STOPS} strings or "
            f"{_MAX_STOP_CHARS} characters"
        )
        raise InvalidRequestError(message, param="stop")
    return texts


def checked_stop_token_ids(stop_token_ids: Sequence[int] | None) -> tuple[int, ...]:
    found = as_tuple("stop_token_ids", stop_token_ids)
    if len(found) > _MAX_STOPS:
        message = f"stop_token_ids holds {len(found)} ids, more than {_MAX_STOPS}"
        raise InvalidRequestError(message, param="stop_token_ids")
    for token_id in found:
        check_whole("stop_token_ids", token_id, minimum=0, maximum=MAX_TOKEN_ID)
    return found


def checked_words(bad_words: Sequence[str]) -> tuple[str, ...]:
    words = as_tuple("bad_words", bad_words)
    if any(not isinstance(word, str) or not word.strip() for word in words):
        raise InvalidRequestError(f"bad_words must hold non-empty strings, got {bad_words!r:.80}", param="bad_words")
    if len(words) > _MAX_BAD_WORDS:
        raise InvalidRequestError(f"bad_words holds {len(words)} words, more than {_MAX_BAD_WORDS}", param="bad_words")
    return words


def check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise InvalidRequestError(f"{name} must be True or False, got {value!r:.80}", param=name)


def check_number(
    name: str, value: float, *, minimum: float | None = None, above: float | None = None, maximum: float | None = None
) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    if not is_number or _out_of_range(value, minimum=minimum, above=above, maximum=maximum):
        wanted = _describe_range("a number", minimum=minimum, above=above, maximum=maximum)
        raise InvalidRequestError(f"{name} must be {wanted}, got {value!r}", param=name)


def check_whole(name: str, value: int, *, minimum: int, maximum: int | None = None) -> None:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if maximum is None and is_whole and value > _MAX_WHOLE:
        maximum = _MAX_WHOLE
    if not is_whole or _out_of_range(value, minimum=minimum, maximum=maximum):
        wanted = _describe_range("a whole number", minimum=minimum, maximum=maximum)
        raise InvalidRequestError(f"{name} must be {wanted}, got {value!r}", param=name)


def _out_of_range(
    value: float, *, minimum: float | None = None, above: float | None = None, maximum: float | None = None
) -> bool:
    return (
        (minimum is not None and value < minimum)
        or (above is not None and value <= above)
        or (maximum is not None and value > maximum)
    )


def _describe_range(
    kind: str, *, minimum: float | None = None, above: float | None = None, maximum: float | None = None
) -> str:
    bounds = []
    if minimum is not None:
        bounds.append(f"at least {minimum}")
    if above is not None:
        bounds.append(f"above {above}")
    if maximum is not None:
        bounds.append(f"at most {maximum}")
    return f"{kind}, {' and '.join(bounds)}"
