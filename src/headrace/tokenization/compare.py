"""Whether a result has the reference's ids, and if not, which shortcut was wrong. Blocking."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from headrace.tokenization.admission import encode_in_parts
from headrace.tokenization.model_encoder import Shortcut
from headrace.tokenization.segments import CutRules
from headrace.tokenization.tokenizer import TokenIds, Tokenizer

_MAX_TRIALS = 300
NUM_SHOWN_CHARS = 200


@dataclass(frozen=True, slots=True, eq=False)
class Check:
    """A result to compare, with all that may have gone into it."""

    text: str
    token_ids: TokenIds
    reference: Tokenizer
    encoder: Tokenizer
    rules: CutRules
    add_special_tokens: bool


@dataclass(frozen=True, slots=True)
class Finding:
    """Which shortcut gave other ids than the reference, and a short text that shows it."""

    shortcut: Shortcut
    example: str


def is_right(check: Check) -> bool:
    """Whether the ids are the reference's."""
    return np.array_equal(check.token_ids, _whole(check.reference, check.text, check))


def compare(check: Check) -> Finding | None:
    """None when the ids are the reference's."""
    if is_right(check):
        return None
    if _encoder_is_wrong(check, check.text):
        return Finding("encoder", shrink(check.text, partial(_encoder_is_wrong, check)))
    if check.rules and _cuts_are_wrong(check, check.text):
        return Finding("cuts", shrink(check.text, partial(_cuts_are_wrong, check)))
    return Finding("cache", check.text[:NUM_SHOWN_CHARS])


def shrink(text: str, is_wrong: Callable[[str], bool]) -> str:
    """A text, as short as a few hundred trials make it, for which `is_wrong` still holds as it does for `text`."""
    num_trials = 0
    size = len(text) // 2
    while size and num_trials < _MAX_TRIALS:
        at = 0
        while at < len(text) and num_trials < _MAX_TRIALS:
            shorter = text[:at] + text[at + size :]
            num_trials += 1
            if is_wrong(shorter):
                text = shorter
            else:
                at += size
        size //= 2
    return text


def _whole(tokenizer: Tokenizer, text: str, check: Check) -> TokenIds:
    return tokenizer.encode_batch([text], add_special_tokens=check.add_special_tokens)[0]


def _encoder_is_wrong(check: Check, text: str) -> bool:
    if check.encoder is check.reference:
        return False
    return not np.array_equal(_whole(check.encoder, text, check), _whole(check.reference, text, check))


def _cuts_are_wrong(check: Check, text: str) -> bool:
    whole = check.reference.encode_batch([text], add_special_tokens=True)[0]
    parts = encode_in_parts(text, check.reference, check.rules, cuts=list(check.rules.all_cuts(text)))
    return not np.array_equal(whole, parts)
