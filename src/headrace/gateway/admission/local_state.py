"""Limits counted in this process. They begin anew with it."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from headrace.gateway.admission.account import Account
from headrace.gateway.admission.bill import Bill
from headrace.gateway.admission.budget import PresentWindows, window_at
from headrace.gateway.admission.keys import ApiKey
from headrace.gateway.admission.limits import Hold, Levels, Refusal, hopeless, refusal
from headrace.gateway.admission.refusals import LimitError, limit_error
from headrace.gateway.admission.state import Grant, Report
from headrace.gateway.admission.usage_totals import UsageTotals


class LocalState:
    """A LimitState in memory. `clock` gives seconds since the epoch and does not go back."""

    why_local: str | None = None

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._windows = PresentWindows()
        self._accounts: dict[str, Account] = {}
        self.totals = UsageTotals()

    async def start(self) -> None:
        """Nothing to begin."""

    async def aclose(self) -> None:
        """Nothing to end."""

    async def take(self, key: ApiKey, hold: Hold) -> Grant:
        return self.take_now(key, hold)

    def take_now(self, key: ApiKey, hold: Hold) -> Grant:
        """`take`, which waits for nobody here."""
        limits = key.limits
        now_s = self._clock()
        windows = self._windows.of(limits.budgets, now_s) if limits.budgets else ()
        levels = self._account(key).take(hold, limits, windows=windows, now_us=int(now_s * 1e6))
        if levels is None:
            raise self._refused(key, hold, now_s=now_s)
        return Grant(key=key, hold=hold, levels=levels)

    def settle(self, grant: Grant, model: str, bill: Bill) -> None:
        account = self._accounts[grant.key.name]
        account.let_go(grant.hold)
        if bill.source != "nothing":
            self._use(account, grant.key, model, bill)

    def note_use(self, key: ApiKey, model: str, bill: Bill) -> None:
        """Count what a request has used that was not held here."""
        if bill.source != "nothing":
            self._use(self._account(key), key, model, bill)

    def note_spent(self, key: ApiKey, levels: Levels) -> None:
        """What all gateways together have spent, from whoever counts that."""
        if key.limits.budgets:
            now_s = self._clock()
            windows = self._windows.of(key.limits.budgets, now_s)
            self._account(key).note_spent(levels.spent, windows=windows, now_us=int(now_s * 1e6))

    def levels(self, key: ApiKey) -> Levels:
        """How far `key` has used its limits."""
        now_s = self._clock()
        windows = self._windows.of(key.limits.budgets, now_s)
        return self._account(key).levels(key.limits, windows=windows, now_us=int(now_s * 1e6))

    async def report(self, key: ApiKey) -> Report:
        return self.report_now(key)

    def report_now(self, key: ApiKey) -> Report:
        """`report`, which waits for nobody here."""
        return Report(
            levels=self.levels(key),
            windows=self._windows.of(key.limits.budgets, self._clock()),
            totals={model: replace(totals) for model, totals in self.totals.of(key.name).items()},
        )

    def forget_except(self, names: Mapping[str, object]) -> None:
        self._accounts = {
            name: account for name, account in self._accounts.items() if name in names or not account.is_idle
        }
        self.totals.forget_except(names)

    def num_open(self) -> int:
        """Requests held, of all keys."""
        return sum(account.num_open for account in self._accounts.values())

    def _use(self, account: Account, key: ApiKey, model: str, bill: Bill) -> None:
        limits = key.limits
        now_s = self._clock()
        windows = self._windows.of(limits.budgets, now_s) if limits.budgets else ()
        account.use(num_tokens=bill.num_tokens, cost=bill.cost, limits=limits, windows=windows, now_us=int(now_s * 1e6))
        self.totals.add(key.name, model, bill)

    def _refused(self, key: ApiKey, hold: Hold, *, now_s: float) -> LimitError:
        windows = self._windows.of(key.limits.budgets, now_s)
        levels = self._account(key).levels(key.limits, windows=windows, now_us=int(now_s * 1e6))
        return refused(key, hold, levels, now_s=now_s)

    def _account(self, key: ApiKey) -> Account:
        account = self._accounts.get(key.name)
        if account is None:
            account = self._accounts[key.name] = Account()
        return account

    def __repr__(self) -> str:
        return f"LocalState(num_accounts={len(self._accounts)}, {self.totals!r})"


def refused(key: ApiKey, hold: Hold, levels: Levels, *, now_s: float) -> LimitError:
    """The error for a request that did not fit at `levels`, those without it."""
    why = hopeless(key.limits, hold) or refusal(key.limits, hold, levels)
    assert why is not None, levels
    return limit_error(key, _with_retry(why, now_s=now_s), hold, levels)


def _with_retry(why: Refusal, *, now_s: float) -> Refusal:
    """A budget comes back when its window ends."""
    if why.budget is None:
        return why
    end_s = window_at(why.budget.period, now_s).end_s
    return replace(why, retry_after_s=None if end_s is None else end_s - now_s)
