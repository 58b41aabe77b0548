"""How much encoding an event loop may do itself in one round. Pure: whoever encodes says what it took."""

_CALL_S = 5e-6
_AROUND_CALL_S = 4e-6
"""Of that, what the loop spends beside the call itself, which alone is measured."""
_FIRST_CHAR_S = 25e-9
_MIN_CHAR_S, _MAX_CHAR_S = 2e-9, 1e-6
_WEIGHT = 0.1
_MIN_CALL_CHARS = 200
"""The time of shorter texts is that of the call and tells nothing of characters."""
_RESERVED_SHARE = 0.02


class LoopBudget:
    """Estimates calls from how fast those of the last rounds were, and lets through what fits into the rest of one."""

    def __init__(self, *, budget_s: float) -> None:
        self.budget_s = budget_s
        self._spent_s = 0.0
        self._reserved_s = 0.0
        self._room_s = budget_s - _CALL_S
        """What is left of the round, less a call."""
        self._num_calls = 0
        self._num_chars = 0
        self._char_s = _FIRST_CHAR_S

    def estimate_s(self, num_chars: int) -> float:
        return _CALL_S + num_chars * self._char_s

    def allows(self, num_chars: int) -> bool:
        return num_chars * self._char_s <= self._room_s

    def reserve(self, estimate_s: float) -> bool:
        """Keep room in this round for a call that will come; False when too much is kept. The first always finds some.

        What is left is for who does not wait: a caller that goes on at once costs less than one that waits each time.
        """
        if self._reserved_s and self._reserved_s + estimate_s > _RESERVED_SHARE * self.budget_s:
            return False
        self._reserved_s += estimate_s
        self._room_s -= estimate_s
        return True

    def release(self, estimate_s: float) -> None:
        """The call comes now."""
        released_s = min(self._reserved_s, estimate_s)
        self._reserved_s -= released_s
        self._room_s += released_s

    @property
    def is_reserved(self) -> bool:
        return self._reserved_s > 0

    def spend(self, num_chars: int, *, took_s: float) -> None:
        took_s += _AROUND_CALL_S
        self._spent_s += took_s
        self._room_s -= took_s
        self._num_calls += 1
        self._num_chars += num_chars

    def renew(self) -> None:
        """A new round of the loop begins."""
        if self._num_chars > _MIN_CALL_CHARS * self._num_calls:
            seen = (self._spent_s - self._num_calls * _CALL_S) / self._num_chars
            # A call that had to wait for the processor says little of the encoder, so one round moves this by a tenth.
            self._char_s += _WEIGHT * (min(max(seen, _MIN_CHAR_S), _MAX_CHAR_S, 2 * self._char_s) - self._char_s)
        self._spent_s = self._reserved_s = 0.0
        self._room_s = self.budget_s - _CALL_S
        self._num_calls = self._num_chars = 0

    def __repr__(self) -> str:
        return f"LoopBudget(spent_s={self._spent_s:.6f} of {self.budget_s}, char_s={self._char_s:.2e})"
