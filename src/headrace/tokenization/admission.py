"""Which shortcuts a tokenizer may take: each is compared with the reference before it serves anybody.

Blocking, about a second; the service calls it in a thread of its own, and the reference serves meanwhile.
"""

import itertools
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np

from headrace.errors import TokenizationError
from headrace.tokenization.fastokens_tokenizer import MAX_SEPARATE
from headrace.tokenization.fuzz import fuzz_texts
from headrace.tokenization.segments import CutRules, no_cuts
from headrace.tokenization.tokenizer import TokenIds, Tokenizer

_LOG = logging.getLogger(__name__)

EncoderChoice = Literal["auto", "reference", "fastokens"]

_NUM_ENCODER_TEXTS = 3000
_NUM_CUT_TEXTS = 1500
_BATCH = MAX_SEPARATE
"""So few texts are encoded in the calling thread, and the library starts none of its own."""
_NUM_ADDED_TOKENS = 256
_SEED = 20


@runtime_checkable
class HasShortcuts(Protocol):
    """A tokenizer that knows more than how to encode: where its texts may be cut, and how to do it faster."""

    @property
    def cut_rules(self) -> CutRules: ...

    @property
    def added_tokens(self) -> tuple[str, ...]:
        """The tokens that are found in a text as they are written."""
        ...

    def accelerated(self) -> Tokenizer:
        """A faster encoder of the same rules. Raises TokenizationError when there is none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """What a tokenizer may use besides its reference."""

    encoder: Tokenizer | None
    """The accelerated encoder, or None: the reference encodes."""
    encoder_reason: str
    cut_rules: CutRules

    @classmethod
    def refused(cls, reason: str) -> "Admission":
        """Nothing but the reference."""
        return cls(encoder=None, encoder_reason=reason, cut_rules=no_cuts(reason))


class _StoppedError(Exception):
    """The service is closing; nobody needs the answer."""


def admit(
    tokenizer: Tokenizer, *, choice: EncoderChoice, uses_cuts: bool, should_stop: Callable[[], bool] = lambda: False
) -> Admission:
    """Compare the shortcuts of `tokenizer` with it, on the same few thousand adversarial texts every time."""
    if not isinstance(tokenizer, HasShortcuts):
        return Admission.refused("nothing is known of its rules")
    special_tokens = tokenizer.added_tokens[:_NUM_ADDED_TOKENS]
    try:
        encoder, reason = _admit_encoder(tokenizer, choice, special_tokens, should_stop)
        rules = tokenizer.cut_rules if uses_cuts else no_cuts("switched off by the settings")
        rules = _admit_cuts(encoder or tokenizer, tokenizer, rules, special_tokens, should_stop)
    except _StoppedError:
        return Admission.refused("the service was closed")
    _LOG.info(
        "%s: encoder %s (%s); cuts %s", tokenizer.name, "fastokens" if encoder else "reference", reason, rules.reason
    )
    return Admission(encoder=encoder, encoder_reason=reason, cut_rules=rules)


def _admit_encoder(
    tokenizer: Tokenizer, choice: EncoderChoice, special_tokens: Sequence[str], should_stop: Callable[[], bool]
) -> tuple[Tokenizer | None, str]:
    if choice == "reference":
        return None, "chosen by the settings"
    assert isinstance(tokenizer, HasShortcuts)
    try:
        encoder = tokenizer.accelerated()
    except TokenizationError as error:
        return None, error.message
    texts = fuzz_texts(_NUM_ENCODER_TEXTS, seed=_SEED, special_tokens=special_tokens)
    for batch, adds in zip(_batches(texts, should_stop), itertools.cycle((False, True)), strict=False):
        reference_ids = tokenizer.encode_batch(batch, add_special_tokens=adds)
        encoder_ids = encoder.encode_batch(batch, add_special_tokens=adds)
        for text, one, other in zip(batch, reference_ids, encoder_ids, strict=True):
            if not np.array_equal(one, other):
                return None, f"fastokens gives other ids for {text[:200]!r}"
    return encoder, "it passed the comparison"


def _admit_cuts(
    encoder: Tokenizer,
    reference: Tokenizer,
    rules: CutRules,
    special_tokens: Sequence[str],
    should_stop: Callable[[], bool],
) -> CutRules:
    if not rules:
        return rules
    texts = fuzz_texts(_NUM_CUT_TEXTS, seed=_SEED + 1, special_tokens=special_tokens)
    for batch in _batches(texts, should_stop):
        whole_ids = reference.encode_batch(batch, add_special_tokens=True)
        for text, whole in zip(batch, whole_ids, strict=True):
            if not np.array_equal(whole, encode_in_parts(text, encoder, rules, cuts=list(rules.all_cuts(text)))):
                return no_cuts(f"the parts of {text[:200]!r} have other ids than the whole")
    return rules


def encode_in_parts(text: str, encoder: Tokenizer, rules: CutRules, *, cuts: Sequence[int]) -> TokenIds:
    """`text` with special tokens around it, every part encoded on its own."""
    texts = rules.parts(text, cuts)
    few = (texts[begin : begin + _BATCH] for begin in range(0, len(texts), _BATCH))
    parts = [ids for batch in few for ids in encoder.encode_batch(batch, add_special_tokens=False)]
    prefix, suffix = np.array(rules.prefix_ids, np.uint32), np.array(rules.suffix_ids, np.uint32)
    return np.concatenate([prefix, *parts, suffix])


def _batches(texts: Iterable[str], should_stop: Callable[[], bool]) -> Iterable[list[str]]:
    iterator = iter(texts)
    while batch := list(itertools.islice(iterator, _BATCH)):
        if should_stop():
            raise _StoppedError
        yield batch
