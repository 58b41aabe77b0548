"""Keeps the shortcuts honest: in idle time a share of the results is encoded again by the reference and compared.

Where the reference is not at hand an examiner has it: results are held, and go to one examiner together.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from headrace.tokenization.compare import NUM_SHOWN_CHARS, Check, Finding, compare
from headrace.tokenization.deferred import DeferredTokenizer, is_at_hand
from headrace.tokenization.examiner.examination import Examiners
from headrace.tokenization.examiner.wire import Compare, Compared, Result
from headrace.tokenization.instruments import Instruments
from headrace.tokenization.lanes import Finished, Lane
from headrace.tokenization.model_encoder import ModelEncoder, Shortcut
from headrace.tokenization.tokenizer import TokenIds

_LOG = logging.getLogger(__name__)

ValueT = TypeVar("ValueT")

_MAX_TEXT_CHARS = 128 * 1024
_MAX_WAITING = 4
_MAX_HELD_CHARS = 512 * 1024
"""Of all results that wait for an examiner."""
_NICENESS = 10
"""An examiner that compares in idle time takes what nobody else wants (a tenth of a busy core outside Linux)."""
_REST_AFTER_FAILURE_S = 60.0

_HANDING_OVER_S = 200e-6
"""What it costs the event loop beside the comparison: two threads that both want the interpreter."""


@dataclass(frozen=True, slots=True)
class CompareWithReference:
    """The work of the thread that verifies."""

    def run(self, checks: Sequence[Check]) -> list[Finding | None]:
        return [compare(check) for check in checks]


@dataclass(frozen=True, slots=True)
class AskExaminer:
    """The same, by an examiner; each payload is the checks of one reference."""

    examiners: Examiners

    def run(self, payloads: Sequence[Sequence[Check]]) -> list[list[Finding | None]]:
        return [self._ask(checks) for checks in payloads]

    def _ask(self, checks: Sequence[Check]) -> list[Finding | None]:
        reference = checks[0].reference
        assert isinstance(reference, DeferredTokenizer)
        question = Compare(definition=reference.definition, results=[Result.of(check) for check in checks])
        return self.examiners.ask(question, Compared, niceness=_NICENESS).findings


class Verifier:
    """Picks results, has them compared in the thread of `lane`, and drops the shortcut that was wrong. Belongs to one
    event loop."""

    def __init__(
        self,
        lane: Lane,
        *,
        share: float,
        is_idle: Callable[[], bool],
        examiners: Examiners,
        instruments: Instruments,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`share` of the results is compared, while that takes no more than this share of the thread's time."""
        self._lane = lane
        self._share = share
        self._is_idle = is_idle
        self._ask_examiner = AskExaminer(examiners)
        self._held: dict[ModelEncoder, list[Check]] = {}
        self._num_held_chars = 0
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
        if len(text) > _MAX_TEXT_CHARS:
            return
        check = Check(text, token_ids, encoder.reference, encoder.encoder, encoder.rules, add_special_tokens)
        is_here = is_at_hand(encoder.reference)
        if not is_here:
            self._hold(encoder, check)
        if self._now_s() < self._rests_until_s or len(self._lane) >= _MAX_WAITING or not self._is_idle():
            return
        if is_here:
            future = self._lane.submit(CompareWithReference(), check, num_bytes=len(text))
            future.add_done_callback(partial(self._note, model, encoder))
        else:
            self._have_examined(model, encoder)

    def _hold(self, encoder: ModelEncoder, check: Check) -> None:
        """The latest count: when there is no more room, those before are forgotten."""
        if self._num_held_chars + len(check.text) > _MAX_HELD_CHARS:
            self._held.clear()
            self._num_held_chars = 0
        self._held.setdefault(encoder, []).append(check)
        self._num_held_chars += len(check.text)

    def _have_examined(self, model: str, encoder: ModelEncoder) -> None:
        checks = self._held.pop(encoder)
        num_chars = sum(len(check.text) for check in checks)
        self._num_held_chars -= num_chars
        future = self._lane.submit(self._ask_examiner, checks, num_bytes=num_chars)
        future.add_done_callback(partial(self._note_all, model, encoder))
        self._rests_until_s = math.inf  # until this one is over

    def _note_all(
        self, model: str, encoder: ModelEncoder, future: asyncio.Future[Finished[list[Finding | None]]]
    ) -> None:
        self._rests_until_s = self._now_s() + _REST_AFTER_FAILURE_S
        if (finished := _finished(future)) is not None:
            self._rest_after(finished.run_s)
            self._act_on(finished.value, model, encoder)

    def _note(self, model: str, encoder: ModelEncoder, future: asyncio.Future[Finished[Finding | None]]) -> None:
        if (finished := _finished(future)) is not None:
            self._rest_after(finished.run_s)
            self._act_on([finished.value], model, encoder)

    def _rest_after(self, run_s: float) -> None:
        self._rests_until_s = self._now_s() + (run_s + _HANDING_OVER_S) * (1 / self._share - 1)

    def _act_on(self, findings: Sequence[Finding | None], model: str, encoder: ModelEncoder) -> None:
        wrong: dict[Shortcut, Finding] = {}
        for finding in findings:
            self._instruments.verified(model=model, found="equal" if finding is None else finding.shortcut)
            if finding is not None:
                wrong.setdefault(finding.shortcut, finding)
        for finding in wrong.values():
            shown = repr(finding.example[:NUM_SHOWN_CHARS])
            why = f"it gave other ids than the reference for {shown}"
            unexplained: tuple[Shortcut, ...] = ("cache", "encoder", "cuts")
            for shortcut in unexplained if finding.shortcut == "cache" else (finding.shortcut,):
                encoder.drop(shortcut, why=why)


def _finished(future: asyncio.Future[Finished[ValueT]]) -> Finished[ValueT] | None:
    """What came of it; None where nothing did."""
    if future.cancelled():
        return None
    if (error := future.exception()) is not None:
        _LOG.debug("results could not be compared: %s", error)
        return None
    return future.result()
