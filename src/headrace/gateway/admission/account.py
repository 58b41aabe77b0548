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
        self._spent_elsewhere: dict[str, tuple[Window, int]] = {}
        """In windows of budgets that the last use did not have, by their names: a key's limits can change while its
        requests run, and those that began before it end with the old ones."""
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
        if windows is not self._windows:
            self._turn_to(windows, now_us=now_us)
        if windows:
            self._spent = tuple([spent + cost for spent in self._spent])
        for name, (window, spent) in self._spent_elsewhere.items():
            self._spent_elsewhere[name] = window, spent + cost

    def note_spent(self, amounts: Sequence[int], *, windows: Sequence[Window], now_us: int) -> None:
        """Somebody who knows better says what was spent in each of `windows`."""
        assert len(amounts) == len(windows), (amounts, windows)
        if windows is not self._windows:
            self._turn_to(windows, now_us=now_us)
        self._spent = tuple(amounts)

    def _turn_to(self, windows: Sequence[Window], *, now_us: int) -> None:
        """Count in `windows` from now on, with what was spent in them before. Others are remembered until they end."""
        spent = self._spent_in(windows)
        names = {window.name for window in windows}
        known = {window.name: (window, amount) for window, amount in zip(self._windows, self._spent, strict=True)}
        self._spent_elsewhere = {
            name: (window, amount)
            for name, (window, amount) in (self._spent_elsewhere | known).items()
            if name not in names and (window.end_s is None or window.end_s * 1e6 > now_us)
        }
        self._windows, self._spent = windows, spent

    def _spent_in(self, windows: Sequence[Window]) -> tuple[int, ...]:
        """The same in `windows`, which nearly always are those of the last use."""
        if windows is self._windows:
            return self._spent
        spent = {name: amount for name, (_, amount) in self._spent_elsewhere.items()}
        spent |= {window.name: amount for window, amount in zip(self._windows, self._spent, strict=True)}
        return tuple([spent.get(window.name, 0) for window in windows])

    def __repr__(self) -> str:
        return f"Account(num_open={self.num_open}, held_tokens={self._held_tokens}, spent={self._spent})"
