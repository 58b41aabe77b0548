"""Compares a sample of an endpoint's ids with the local tokenizer's, beside the requests and never in their way.

A mismatch is counted, and the first ones of each model are logged with the smallest text that was found to show it.
"""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import numpy as np

from headrace.aio.tasks import TaskOwner
from headrace.errors import HeadraceError
from headrace.tokenization.prompt import ChatPrompt
from headrace.tokenization.remote.fallback import LocalTokenizers
from headrace.tokenization.remote.instruments import RemoteInstruments
from headrace.tokenization.tokenizer import TokenIds

_LOG = logging.getLogger(__name__)

_MAX_EXAMPLES = 3
"""Mismatches of one model that are looked into and logged; further ones are only counted."""

_MAX_SHRINKING_STEPS = 48
_MAX_SHOWN_CHARS = 80
_NUM_SHOWN_IDS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class ParitySample:
    """A remote answer to compare."""

    prompt: str | ChatPrompt
    model: str
    add_special_tokens: bool
    url: str
    remote_ids: TokenIds
    local: LocalTokenizers
    ask: Callable[[str], Awaitable[TokenIds]]
    """The same endpoint's ids for another text."""


class ParityChecks:
    """Takes samples and compares them in tasks of its own. Belongs to one event loop."""

    def __init__(
        self,
        *,
        share: float,
        max_checks: int,
        random: Callable[[], float],
        instruments: RemoteInstruments,
    ) -> None:
        self._share = share
        self._max_checks = max_checks
        self._random = random
        self._instruments = instruments
        self._owner = TaskOwner("parity checks")
        self._num_mismatches: Counter[str] = Counter()
        self.num_checks = 0

    @property
    def num_mismatches(self) -> int:
        """Of all models."""
        return self._num_mismatches.total()

    @property
    def num_in_flight(self) -> int:
        """Comparisons that have not ended."""
        return len(self._owner)

    def offer(self, sample: ParitySample) -> None:
        """Compare `sample` in the background if the dice say so and there is room."""
        if self._random() < self._share and len(self._owner) < self._max_checks:
            self._owner.spawn(self._check(sample), name=f"parity of {sample.model}")

    async def aclose(self) -> None:
        """End all comparisons. Idempotent."""
        await self._owner.aclose()

    async def _check(self, sample: ParitySample) -> None:
        try:
            local_ids = await _local_ids(sample.prompt, sample)
        except HeadraceError as error:
            self._instruments.compared(model=sample.model, result="not_compared")
            _LOG.debug("model %s: remote ids not compared: %s", sample.model, error.message)
            return
        self.num_checks += 1
        if np.array_equal(local_ids, sample.remote_ids):
            self._instruments.compared(model=sample.model, result="equal")
            return
        self._instruments.compared(model=sample.model, result="different")
        self._num_mismatches[sample.model] += 1
        if self._num_mismatches[sample.model] <= _MAX_EXAMPLES:
            await self._log_example(sample, local_ids)

    async def _log_example(self, sample: ParitySample, local_ids: TokenIds) -> None:
        remote_ids = sample.remote_ids
        shown = "a chat"
        if isinstance(sample.prompt, str):
            text, remote_ids, local_ids = await self._shrink(sample.prompt, sample, local_ids)
            shown = repr(text[:_MAX_SHOWN_CHARS])
        at = first_difference(remote_ids, local_ids)
        _LOG.warning(
            "model %s: the tokenizer of %s differs from the local one in token %d of %s: remote %s, local %s",
            sample.model,
            sample.url,
            at,
            shown,
            remote_ids[at : at + _NUM_SHOWN_IDS].tolist(),
            local_ids[at : at + _NUM_SHOWN_IDS].tolist(),
        )

    async def _shrink(self, text: str, sample: ParitySample, local_ids: TokenIds) -> tuple[str, TokenIds, TokenIds]:
        """A short part of `text` that shows the difference too, and both tokenizers' ids for it."""
        found = text, sample.remote_ids, local_ids

        async def differs(part: str) -> bool:
            nonlocal found
            remote_ids, ids = await sample.ask(part), await _local_ids(part, sample)
            if np.array_equal(remote_ids, ids):
                return False
            found = part, remote_ids, ids
            return True

        try:
            await shrink(text, differs, max_steps=_MAX_SHRINKING_STEPS)
        except HeadraceError as error:
            _LOG.debug("model %s: the example was not made smaller: %s", sample.model, error.message)
        return found


async def _local_ids(prompt: str | ChatPrompt, sample: ParitySample) -> TokenIds:
    encoded = await sample.local.encode(prompt, model=sample.model, add_special_tokens=sample.add_special_tokens)
    return encoded.token_ids


def first_difference(one: TokenIds, other: TokenIds) -> int:
    """The first position at which they differ; one that has ended differs there."""
    length = min(len(one), len(other))
    unequal = np.flatnonzero(one[:length] != other[:length])
    return int(unequal[0]) if len(unequal) else length


async def shrink(text: str, differs: Callable[[str], Awaitable[bool]], *, max_steps: int) -> str:
    """A part of `text`, which differs itself, for which `differs` holds too, found in at most `max_steps` questions.

    Looks for the shortest beginning that differs, then for the shortest end of that, halving; with a difference that
    depends on its surroundings, what is found may not be the shortest.
    """
    num_steps = 0
    low, high = 0, len(text)  # text[:high] differs
    while high - low > 1 and num_steps < max_steps:
        num_steps += 1
        middle = (low + high) // 2
        low, high = (low, middle) if await differs(text[:middle]) else (middle, high)
    text = text[:high]
    low, high = 0, len(text)  # text[low:] differs
    while high - low > 1 and num_steps < max_steps:
        num_steps += 1
        middle = (low + high) // 2
        low, high = (middle, high) if await differs(text[middle:]) else (low, middle)
    return text[low:]
