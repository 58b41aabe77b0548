"""How much encoding an event loop may do itself in one round. Pure: whoever encodes says what it took."""

_CALL_S = 5e-6
_FIRST_CHAR_S = 25e-9
_MIN_CHAR_S, _MAX_CHAR_S = 2e-9, 1e-6
_WEIGHT = 0.1


class LoopBudget:
    """Estimates calls from how fast the last ones were, and lets through what fits into what is left of the round."""

    def __init__(self, *, budget_s: float) -> None:
        self._budget_s = budget_s
        self._spent_s = 0.0
        self._char_s = _FIRST_CHAR_S

    @property
    def is_fresh(self) -> bool:
        """Whether nothing was spent in this round."""
        return self._spent_s == 0.0

    def allows(self, num_chars: int) -> bool:
        return self._spent_s + _CALL_S + num_chars * self._char_s <= self._budget_s

    def spend(self, num_chars: int, *, took_s: float) -> None:
        self._spent_s += max(took_s, 1e-9)
        if num_chars:
            seen = min(max((took_s - _CALL_S) / num_chars, _MIN_CHAR_S), _MAX_CHAR_S)
            self._char_s += _WEIGHT * (seen - self._char_s)

    def renew(self) -> None:
        """A new round of the loop begins."""
        self._spent_s = 0.0

    def __repr__(self) -> str:
        return f"LoopBudget(spent_s={self._spent_s:.6f} of {self._budget_s}, char_s={self._char_s:.2e})"
