"""Which batches of a source are new, which are missing, and when the engine behind it has started anew. Pure.

Theory. Batches are numbered from 0 without gaps. A number that was seen before is either the same batch once more (what
was replayed also waited in the socket) or the first ones of a restarted engine; only the engine's own time, which each
batch carries, tells these apart: a restarted engine's batches are younger than all that were seen.
"""

from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    """What to do with a batch that has come."""

    APPLY = "apply"
    """It is the next one."""
    SKIP = "skip"
    """It was applied before."""
    GAP = "gap"
    """Some before it are missing; ask for a replay from `next_number` on."""
    RESTART = "restart"
    """The engine has started anew: its cache is empty, and `next_number` is 0 again."""


@dataclass(frozen=True, slots=True)
class _Last:
    number: int
    time_s: float


class Sequence:
    """The batches of one source."""

    def __init__(self) -> None:
        self._last: _Last | None = None

    @property
    def next_number(self) -> int:
        """Of the first batch that was not applied yet."""
        return 0 if self._last is None else self._last.number + 1

    def judge(self, number: int, time_s: float) -> Verdict:
        """The verdict on a batch that has come; nothing changes but on a restart."""
        if self._last is not None and number <= self._last.number:
            if time_s <= self._last.time_s:
                return Verdict.SKIP
            self._last = None
            return Verdict.RESTART
        return Verdict.APPLY if number == self.next_number else Verdict.GAP

    def note_applied(self, number: int, time_s: float) -> None:
        """The batch was applied. Numbers that were passed over are given up."""
        self._last = _Last(number, time_s)

    def judge_replayed(self, number: int, time_s: float, *, is_first: bool) -> Verdict:
        """The verdict on one batch of a replay from the last applied one on; nothing changes. GAP: what is missing
        before it cannot be had any more."""
        if self._last is None:
            return Verdict.APPLY
        if is_first and number == self._last.number:
            return Verdict.SKIP if time_s == self._last.time_s else Verdict.RESTART
        if number <= self._last.number:
            return Verdict.SKIP
        return Verdict.APPLY if number == self.next_number else Verdict.GAP

    def reset(self) -> None:
        """Nothing is known of the source any more."""
        self._last = None

    def __repr__(self) -> str:
        return f"Sequence(next_number={self.next_number})"
