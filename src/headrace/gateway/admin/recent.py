"""What was counted lately, from counts that only ever grow and are looked at once a second. Pure."""

from collections import deque
from collections.abc import Sequence


class RecentCounts:
    """The growth of some counts over the last looks."""

    def __init__(self, num_looks: int) -> None:
        self._looks: deque[Sequence[float]] = deque(maxlen=num_looks + 1)

    def look(self, counts: Sequence[float]) -> list[float]:
        """Note the counts now; how much each has grown since the oldest look that is remembered."""
        self._looks.append(counts)
        return [now - before for now, before in zip(counts, self._looks[0], strict=True)]


def quantile(counts: Sequence[float], bounds: Sequence[float], share: float) -> float | None:
    """Below which value `share` of what was counted lies, by the buckets of a histogram; within a bucket evenly, and
    in the last, endless one its beginning. None where nothing was counted."""
    rank = share * sum(counts)
    if not rank:
        return None
    below, passed = 0.0, 0.0
    for count, bound in zip(counts[:-1], bounds, strict=False):
        if count and passed + count >= rank:
            return below + (bound - below) * (rank - passed) / count
        below, passed = bound, passed + count
    return below
