"""Finds stop strings in text that arrives in pieces. Pure; the outcome does not depend on where the pieces were cut.

The match that ends first wins, and among those that end at the same character the one named first. Only as much text is
held back as could still become the beginning of a stop string. A character costs the same however many there are.
"""

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """`text` may be shown now. With `stopped_by` set it is the last of the answer."""

    text: str
    stopped_by: str | None = None


class StopStrings:
    """The stop strings of a request as an automaton (Aho and Corasick's), which all its completions may share.

    A state is a number: the longest end of the text that begins a stop string. 0 is none.
    """

    def __init__(self, stop_strings: tuple[str, ...]) -> None:
        """Takes time and memory in proportion to the characters of all of them."""
        self._next: list[dict[str, int]] = [{}]
        self._num_chars = [0]
        self._found: list[int | None] = [None]
        """By state, the index of the stop string that ends the text."""
        self._shorter = [0]
        """By state, the next shorter end of the text that begins a stop string."""
        self._stop_strings = stop_strings
        for index, stop in enumerate(stop_strings):
            self._add(stop, index)
        self._link()

    def __bool__(self) -> bool:
        return bool(self._stop_strings)

    def __repr__(self) -> str:
        return f"StopStrings({len(self._stop_strings)}, {len(self._next)} states)"

    def after(self, state: int, char: str) -> int:
        """The state when `char` follows."""
        following = self._next
        while char not in following[state]:
            if state == 0:
                return 0
            state = self._shorter[state]
        return following[state][char]

    def found(self, state: int) -> str | None:
        """The stop string that the text ends with, the one named first if there are several."""
        index = self._found[state]
        return None if index is None else self._stop_strings[index]

    def open(self, state: int) -> int:
        """The state of what may still become a stop string: a whole one that is not to count becomes nothing more."""
        while state and not self._next[state]:
            state = self._shorter[state]
        return state

    def num_chars(self, state: int) -> int:
        """How many characters of the text it stands for."""
        return self._num_chars[state]

    def _add(self, stop: str, index: int) -> None:
        state = 0
        for num_chars, char in enumerate(stop, 1):
            state = self._next[state].setdefault(char, len(self._next))
            if state == len(self._next):
                self._next.append({})
                self._num_chars.append(num_chars)
                self._found.append(None)
                self._shorter.append(0)
        if self._found[state] is None:
            self._found[state] = index

    def _link(self) -> None:
        """Fill `_shorter` and what it tells of `_found`, short ends of text first."""
        states = deque(self._next[0].values())
        while states:
            state = states.popleft()
            shorter = self._found[self._shorter[state]]
            own = self._found[state]
            if shorter is not None and (own is None or shorter < own):
                self._found[state] = shorter
            for char, following in self._next[state].items():
                self._shorter[following] = self.after(self._shorter[state], char)
                states.append(following)


class StopStringScanner:
    """Scans the text of one completion."""

    def __init__(self, stop_strings: StopStrings, *, include_in_output: bool) -> None:
        self._stop_strings = stop_strings
        self._include_in_output = include_in_output
        self._state = 0
        self._held = ""
        """What the state stands for, unless it has been shown."""

    def feed(self, piece: str, *, may_stop: bool = True) -> Scan:
        """Take the next piece. With `may_stop=False` no stop string can end in it, though one may begin in it."""
        stops, state = self._stop_strings, self._state
        if not stops:
            return Scan(text=piece)
        text = self._held + piece
        for end, char in enumerate(piece, len(self._held) + 1):
            state = stops.after(state, char)
            if may_stop and (stop := stops.found(state)) is not None:
                return Scan(text=text[: end if self._include_in_output else end - len(stop)], stopped_by=stop)
        self._state = stops.open(state)
        num_shown = len(text) - (0 if self._include_in_output else stops.num_chars(self._state))
        self._held = text[num_shown:]
        return Scan(text=text[:num_shown])

    def finish(self) -> str:
        """The text still held back, when no more comes. Call it once."""
        return self._held
