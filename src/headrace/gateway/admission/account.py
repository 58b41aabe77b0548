"""What one key has used, in memory. Pure: `now` comes in, and every change is one synchronous call."""

from collections.abc import Sequence

from headrace.gateway.admission.budget import Window
from headrace.gateway.admission.limits import Hold, KeyLimits, Levels, is_within
from headrace.gateway.admission.token_bucket import UNITS, TokenBucket


class Account:
    """The requests that a key has under way, its buckets, and what it has spent in the windows of its budgets."""

    def __init__(self) -> None:
        self._requests = TokenBucket()
        self._tokens = TokenBucket()
        self._windows: Sequence[Window] = ()
        self._spent: tuple[int, ...] = ()
        """In each of the windows, as of the last use."""
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
            spent=self._spent_in(windows) if windows else (),
        )

    def take(self, hold: Hold, limits: KeyLimits, *, windows: Sequence[Window], now_us: int) -> Levels | None:
        """Hold `hold` if it is within the limits, and give the levels with it; else change nothing and give None. A
        hold that was taken must be let go exactly once."""
        requests_rate, tokens_rate = limits.requests_per_minute, limits.tokens_per_minute
        requests_debt = tokens_debt = 0
        if requests_rate is not None:
            requests_debt = self._requests.debt_at(now_us, per_minute=requests_rate) + UNITS
        if tokens_rate is not None:
            tokens_debt = self._tokens.debt_at(now_us, per_minute=tokens_rate)
        levels = Levels(
            num_open=self.num_open + 1,
            held_tokens=self._held_tokens + hold.num_tokens,
            held_cost=self._held_cost + hold.cost,
            requests_debt=requests_debt,
            tokens_debt=tokens_debt,
            spent=self._spent_in(windows) if windows else (),
        )
        if not is_within(limits, levels):
            return None
        if requests_rate is not None:
            self._requests.owe(requests_debt, now_us=now_us)
        self.num_open = levels.num_open
        self._held_tokens = levels.held_tokens
        self._held_cost = levels.held_cost
        return levels

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
        self._spent = tuple([spent + cost for spent in self._spent_in(windows)]) if windows else ()
        self._windows = windows

    def note_spent(self, amounts: Sequence[int], *, windows: Sequence[Window]) -> None:
        """Somebody who knows better says what was spent in each of `windows`."""
        assert len(amounts) == len(windows), (amounts, windows)
        self._spent = tuple(amounts)
        self._windows = windows

    def _spent_in(self, windows: Sequence[Window]) -> tuple[int, ...]:
        """The same in `windows`, which nearly always are those of the last use."""
        if windows is self._windows:
            return self._spent
        spent = {window.name: amount for window, amount in zip(self._windows, self._spent, strict=True)}
        return tuple([spent.get(window.name, 0) for window in windows])

    def __repr__(self) -> str:
        return f"Account(num_open={self.num_open}, held_tokens={self._held_tokens}, spent={self._spent})"
