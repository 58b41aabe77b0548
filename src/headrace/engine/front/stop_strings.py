"""Finds stop strings in text that arrives in pieces. Pure; the outcome does not depend on where the pieces were cut.

The match that ends first wins, and among those that end at the same character the one named first. Only as much text is
held back as could still become the beginning of a stop string.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """`text` may be shown now. With `stopped_by` set it is the last of the answer."""

    text: str
    stopped_by: str | None = None


class StopStringScanner:
    """Scans the text of one request."""

    def __init__(self, stop_strings: tuple[str, ...], *, include_in_output: bool) -> None:
        self._stop_strings = stop_strings
        self._include_in_output = include_in_output
        self._max_chars = max(map(len, stop_strings), default=0)
        self._tail = ""
        """Text in which a stop string may have begun: the last `max_chars - 1` characters, shown or not."""
        self._num_held = 0
        """How many characters at the end of the tail have not been shown."""

    def feed(self, piece: str, *, may_stop: bool = True) -> Scan:
        """Take the next piece. With `may_stop=False` no stop string can end in it, though one may begin in it."""
        if not self._stop_strings:
            return Scan(text=piece)
        text = self._tail + piece
        num_shown = len(self._tail) - self._num_held
        found = self._find(text, num_searched=len(self._tail)) if may_stop else None
        if found is not None:
            end, stop = found
            end = end if self._include_in_output else end - len(stop)
            return Scan(text=text[num_shown:end], stopped_by=stop)
        num_held = 0 if self._include_in_output else min(self._num_possible(text), len(text) - num_shown)
        shown = text[num_shown : len(text) - num_held]
        self._tail = text[max(0, len(text) - (self._max_chars - 1)) :]
        self._num_held = num_held
        return Scan(text=shown)

    def finish(self) -> str:
        """The text still held back, when no more comes. Call it once."""
        return self._tail[len(self._tail) - self._num_held :]

    def _find(self, text: str, *, num_searched: int) -> tuple[int, str] | None:
        """The end of the first match that ends after `num_searched`, and the stop string."""
        best: tuple[int, str] | None = None
        for stop in self._stop_strings:
            start = text.find(stop, max(0, num_searched + 1 - len(stop)))
            if start >= 0 and (best is None or start + len(stop) < best[0]):
                best = (start + len(stop), stop)
        return best

    def _num_possible(self, text: str) -> int:
        """Characters of the longest end of `text` that begins a stop string."""
        for length in range(min(self._max_chars - 1, len(text)), 0, -1):
            end = text[len(text) - length :]
            if any(stop.startswith(end) for stop in self._stop_strings):
                return length
        return 0
