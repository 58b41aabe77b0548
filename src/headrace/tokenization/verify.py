"""Keeps the shortcuts honest: in idle time a share of the results is encoded again by the reference and compared."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from headrace.tokenization.admission import encode_in_parts
from headrace.tokenization.instruments import Instruments
from headrace.tokenization.lanes import Finished, Lane
from headrace.tokenization.model_encoder import ModelEncoder, Shortcut
from headrace.tokenization.segments import CutRules
from headrace.tokenization.tokenizer import TokenIds, Tokenizer

_LOG = logging.getLogger(__name__)

_MAX_TEXT_CHARS = 128 * 1024
_MAX_WAITING = 4
_MAX_TRIALS = 300
_NUM_SHOWN_CHARS = 200


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


_HANDING_OVER_S = 200e-6
"""What it costs the event loop beside the comparison: two threads that both want the interpreter."""


@dataclass(frozen=True, slots=True)
class CompareWithReference:
    """The work of the thread that verifies."""

    def run(self, checks: Sequence[Check]) -> list[Finding | None]:
        return [compare(check) for check in checks]


def compare(check: Check) -> Finding | None:
    """None when the ids are the reference's."""
    if np.array_equal(check.token_ids, _whole(check.reference, check.text, check)):
        return None
    if _encoder_is_wrong(check, check.text):
        return Finding("encoder", shrink(check.text, partial(_encoder_is_wrong, check)))
    if check.rules and _cuts_are_wrong(check, check.text):
        return Finding("cuts", shrink(check.text, partial(_cuts_are_wrong, check)))
    return Finding("cache", check.text[:_NUM_SHOWN_CHARS])


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


class Verifier:
    """Picks results, has them compared in the thread of `lane`, and drops the shortcut that was wrong."""

    def __init__(
        self,
        lane: Lane,
        *,
        share: float,
        is_idle: Callable[[], bool],
        instruments: Instruments,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`share` of the results is compared, while that takes no more than this share of the thread's time."""
        self._lane = lane
        self._share = share
        self._is_idle = is_idle
        self._instruments = instruments
        self._now_s = now_s
        self._due = 0.0
        self._rests_until_s = 0.0

    def is_due(self) -> bool:
        """Whether to `consider` this result. Called in the event loop for every result."""
        self._due += self._share
        return self._due >= 1.0

    def consider(
        self, model: str, encoder: ModelEncoder, text: str, token_ids: TokenIds, *, add_special_tokens: bool
    ) -> None:
        """Compare this result, unless enough is done; returns at once."""
        self._due = max(0.0, min(self._due - 1.0, 1.0))
        if self._now_s() < self._rests_until_s or len(text) > _MAX_TEXT_CHARS:
            return
        if len(self._lane) >= _MAX_WAITING or not self._is_idle():
            return
        check = Check(text, token_ids, encoder.reference, encoder.encoder, encoder.rules, add_special_tokens)
        future = self._lane.submit(CompareWithReference(), check, num_bytes=len(text))
        future.add_done_callback(partial(self._note, model, encoder))

    def _note(self, model: str, encoder: ModelEncoder, future: asyncio.Future[Finished[Finding | None]]) -> None:
        if future.cancelled():
            return
        if (error := future.exception()) is not None:
            _LOG.debug("a result could not be compared: %s", error)
            return
        finished = future.result()
        self._rests_until_s = self._now_s() + (finished.run_s + _HANDING_OVER_S) * (1 / self._share - 1)
        finding = finished.value
        self._instruments.verified(model=model, found="equal" if finding is None else finding.shortcut)
        if finding is not None:
            shown = repr(finding.example[:_NUM_SHOWN_CHARS])
            why = f"it gave other ids than the reference for {shown}"
            unexplained: tuple[Shortcut, ...] = ("cache", "encoder", "cuts")
            for shortcut in unexplained if finding.shortcut == "cache" else (finding.shortcut,):
                encoder.drop(shortcut, why=why)
