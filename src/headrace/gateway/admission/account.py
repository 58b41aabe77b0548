"""What one key has used, in memory. Pure: `now` comes in, and every change is one synchronous call."""

from collections.abc import Sequence

from headrace.gateway.admission.budget import Window
from headrace.gateway.admission.limits import Hold, KeyLimits, Levels, refusal
from headrace.gateway.admission.token_bucket import TokenBucket


class Account:
    """The requests that a key has under way, its buckets, and what it has spent in the windows of its budgets."""

    def __init__(self) -> None:
        self._requests = TokenBucket()
        self._tokens = TokenBucket()
        self._spent: dict[str, int] = {}
        self.num_open = 0
        self._held_tokens = 0
        self._held_cost = 0

    @property
    def is_idle(self) -> bool:
        """Whether it has nothing under way."""
        return self.num_open == 0

    def levels(self, limits: KeyLimits, *, windows: Sequence[Window], now_us: int) -> Levels:
        """The state at `now_us`; `windows` are the present ones of the limits' budgets."""
        return Levels(
            num_open=self.num_open,
            held_tokens=self._held_tokens,
            held_cost=self._held_cost,
            requests_debt=self._requests.debt_at(now_us, per_minute=limits.requests_per_minute or 0),
            tokens_debt=self._tokens.debt_at(now_us, per_minute=limits.tokens_per_minute or 0),
            spent=tuple(self._spent.get(window.name, 0) for window in windows),
        )

    def take(self, hold: Hold, limits: KeyLimits, *, windows: Sequence[Window], now_us: int) -> tuple[bool, Levels]:
        """Hold `hold` if it is within the limits: whether it is, and the levels before. A hold that was taken must be
        let go exactly once."""
        levels = self.levels(limits, windows=windows, now_us=now_us)
        if refusal(limits, hold, levels) is not None:
            return False, levels
        if limits.requests_per_minute is not None:
            self._requests.take(1, now_us=now_us, per_minute=limits.requests_per_minute)
        self.num_open += 1
        self._held_tokens += hold.num_tokens
        self._held_cost += hold.cost
        return True, levels

    def let_go(self, hold: Hold) -> None:
        """The request of `hold` has ended."""
        assert self.num_open > 0, self
        self.num_open -= 1
        self._held_tokens -= hold.num_tokens
        self._held_cost -= hold.cost

    def use(self, *, num_tokens: int, cost: int, limits: KeyLimits, windows: Sequence[Window], now_us: int) -> None:
        """A request has used this much. It counts in the windows in which it ended."""
        if limits.tokens_per_minute is not None:
            self._tokens.take(num_tokens, now_us=now_us, per_minute=limits.tokens_per_minute)
        self._spent = {window.name: self._spent.get(window.name, 0) + cost for window in windows}

    def note_spent(self, amounts: Sequence[int], *, windows: Sequence[Window]) -> None:
        """Somebody who knows better says what was spent in each of `windows`."""
        self._spent = {window.name: amount for window, amount in zip(windows, amounts, strict=True)}

    def __repr__(self) -> str:
        return f"Account(num_open={self.num_open}, held_tokens={self._held_tokens}, spent={self._spent})"
