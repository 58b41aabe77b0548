"""Limits that several gateways count together, and what happens when whoever keeps the counts is away.

Theory. Whether a request may go on is asked of the store before it goes on. What it used is told afterwards, in the
background, collected per key, so that a client that leaves can neither lose it nor wait for it. When the store does not
answer, a breaker opens and this gateway goes on by itself: with the key's whole limits, with what all gateways had
spent when it last heard of it, and collecting what is used until it can be told. Several gateways then let pass up to
so many times a rate; budgets go over by what is spent meanwhile.

Rule 1: a caller's cancellation never interrupts a question to the store, since its answer may already hold something.
Rule 2: what was used is told until the store has confirmed it, under a name by which it counts it once.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from headrace.aio.tasks import TaskOwner
from headrace.breaker import Breaker
from headrace.errors import HeadraceError
from headrace.gateway.admission.bill import NOTHING, Bill
from headrace.gateway.admission.budget import Budget, Period, PresentWindows
from headrace.gateway.admission.keys import ApiKey
from headrace.gateway.admission.limits import Hold, KeyLimits, Levels, hopeless
from headrace.gateway.admission.local_state import LocalState, refused
from headrace.gateway.admission.redis_store import Batch, LimitStore, StateUnavailableError, lease_member
from headrace.gateway.admission.refusals import limit_error
from headrace.gateway.admission.state import Grant, Report, levels_with
from headrace.gateway.admission.usage_totals import ModelTotals

_LOG = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

_LEASE_TTL_S = 60.0
_RENEW_INTERVAL_S = 20.0
_FIRST_PAUSE_S = 1.0
_MAX_PAUSE_S = 15.0
_MAX_LEASES_PER_CALL = 1000
_MAX_ASKING = 32
"""Questions at a time. The rest of a burst waits here, so that the time-out is the store's alone: what a thousand
questions at once take in this process would look like an outage."""
_MAX_WAIT_S = 2.0
"""For one's turn to ask."""


@dataclass(frozen=True, slots=True)
class _Taken:
    """The store's answer."""

    is_taken: bool
    levels: Levels


@dataclass(slots=True)
class _Unsettled:
    """What one key has used and the store has not been told."""

    key: ApiKey
    budgets: dict[Period, Budget] = field(default_factory=dict)
    """Of all its requests: the key's may have been changed while they ran."""
    leases: list[str] = field(default_factory=list)
    num_tokens: int = 0
    cost: int = 0
    totals: dict[str, ModelTotals] = field(default_factory=dict)


class SharedState:
    """A LimitState on a store that others share. `local` counts while the store is away."""

    def __init__(self, store: LimitStore, *, local: LocalState, clock: Callable[[], float], timeout_s: float) -> None:
        self.why_local: str | None = None
        self._store = store
        self._local = local
        self._clock = clock
        self._timeout_s = timeout_s
        self._windows = PresentWindows()
        self._breaker = _new_breaker()
        self._may_ask = asyncio.Semaphore(_MAX_ASKING)
        self._name = secrets.token_hex(6)
        self._num_leases = 0
        self._open: dict[str, tuple[ApiKey, str]] = {}
        self._unsettled: dict[str, _Unsettled] = {}
        self._unconfirmed: dict[str, Batch] = {}
        self._num_batches = 0
        self._has_unsettled = asyncio.Event()
        self._telling = asyncio.Lock()
        self._owner = TaskOwner("shared limits")

    async def start(self) -> None:
        self._owner.spawn(self._tell_for_ever(), name="settling")
        self._owner.spawn(self._renew_for_ever(), name="renewing leases")

    async def aclose(self) -> None:
        """Tell the store what is left, if it can be had within its time-out, and close."""
        await self._owner.aclose()
        self._breaker = _new_breaker()  # there is no later for which an outage might be waited out
        await self._tell()
        if left := sorted({*self._unsettled, *self._unconfirmed}):
            _LOG.error("the shared limits were never told what was used last by %s", ", ".join(left[:10]))
        await self._store.aclose()

    async def take(self, key: ApiKey, hold: Hold) -> Grant:
        if (why := hopeless(key.limits, hold)) is not None:
            raise limit_error(key, why, hold, self._local.levels(key))
        self._num_leases += 1
        lease = f"{self._name}-{self._num_leases}"
        counted = _counted(hold, key.limits)
        taken = await self._ask(key, counted, lease)
        if taken is None:
            return self._local.take_now(key, hold)
        self._local.note_spent(key, taken.levels)
        if not taken.is_taken:
            raise refused(key, hold, taken.levels, now_s=self._clock())
        self._open[lease] = (key, lease_member(lease, counted))
        return Grant(key=key, hold=hold, levels=levels_with(taken.levels, counted, key.limits), lease=lease)

    def take_now(self, key: ApiKey, hold: Hold) -> None:
        """Nothing is decided here alone as long as the store answers, and `take` knows whether it does."""

    def settle(self, grant: Grant, model: str, bill: Bill) -> None:
        if grant.lease is None:
            self._local.settle(grant, model, bill)
        else:
            self._local.note_use(grant.key, model, bill)
        self._note(grant.key, grant.lease, model, bill)

    async def report(self, key: ApiKey) -> Report:
        await self._tell()
        windows = self._windows.of(key.limits.budgets, self._clock())
        if not self._breaker.allows(self._clock()):
            return self._local.report_now(key)
        try:
            async with asyncio.timeout(self._timeout_s):
                levels, totals = await self._store.read(key, windows=windows)
        except (StateUnavailableError, TimeoutError):
            return self._local.report_now(key)
        return Report(levels=levels, windows=windows, totals=totals)

    def forget_except(self, names: Mapping[str, object]) -> None:
        self._local.forget_except(names)

    # questions

    async def _ask(self, key: ApiKey, hold: Hold, lease: str) -> _Taken | None:
        """The store's answer; None when there is none."""
        if not self._breaker.allows(self._clock()):
            return None
        task = self._owner.spawn(self._take(key, hold, lease), name="asking the shared limits")
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(lambda _: self._release(key, hold, lease))
            raise

    async def _take(self, key: ApiKey, hold: Hold, lease: str) -> _Taken | None:
        try:
            async with asyncio.timeout(_MAX_WAIT_S):
                await self._may_ask.acquire()
        except TimeoutError:
            return None
        try:
            await asyncio.sleep(0)  # all that came in this moment begin to wait first: the time is not for them
            if not self._breaker.allows(self._clock()):
                return None
            windows = self._windows.of(key.limits.budgets, self._clock())
            question = self._store.take(key, hold, lease=lease, ttl_s=_LEASE_TTL_S, windows=windows)
            taken = await self._attempt(question)
        finally:
            self._may_ask.release()
        if taken is None:
            self._release(key, hold, lease)  # whether it is held is not known
        return None if taken is None else _Taken(*taken)

    async def _attempt(self, call: Coroutine[object, object, ResultT]) -> ResultT | None:
        """The result; None when the store is away, which is then noted."""
        if not self._breaker.allows(self._clock()):
            call.close()
            return None
        permit = self._breaker.acquire(self._clock())
        try:
            async with asyncio.timeout(self._timeout_s):
                result = await call
        except (StateUnavailableError, TimeoutError) as error:
            self._breaker.fail(permit, self._clock())
            self._note_away(error.message if isinstance(error, HeadraceError) else "no answer in time")
            return None
        finally:
            self._breaker.release(permit)
        self._breaker.succeed(permit)
        self._note_back()
        return result

    def _note_away(self, why: str) -> None:
        if self.why_local is None:
            _LOG.warning("the shared limits cannot be had (%s); until then each gateway limits by itself", why)
        self.why_local = why

    def _note_back(self) -> None:
        if self.why_local is not None:
            _LOG.warning("the shared limits are back")
            self.why_local = None

    # settling

    def _release(self, key: ApiKey, hold: Hold, lease: str) -> None:
        self._open[lease] = (key, lease_member(lease, hold))
        self._note(key, lease, "", NOTHING)

    def _note(self, key: ApiKey, lease: str | None, model: str, bill: Bill) -> None:
        unsettled = self._unsettled.setdefault(key.name, _Unsettled(key))
        for budget in key.limits.budgets:
            unsettled.budgets[budget.period] = budget
        if lease is not None:
            _, member = self._open.pop(lease)
            unsettled.leases.append(member)
        if bill.source != "nothing":
            unsettled.num_tokens += bill.num_tokens
            unsettled.cost += bill.cost
            unsettled.totals.setdefault(model, ModelTotals()).add(bill)
        self._has_unsettled.set()

    async def _tell_for_ever(self) -> None:
        while True:
            await self._has_unsettled.wait()
            await self._tell()
            if self._unsettled or self._unconfirmed:
                await asyncio.sleep(_FIRST_PAUSE_S)

    async def _tell(self) -> None:
        """Tell the store what it has not been told, one key after the other; what it does not confirm is kept."""
        async with self._telling:
            self._has_unsettled.clear()
            for name in {*self._unconfirmed, *self._unsettled}:
                while (batch := self._next_batch(name)) is not None:
                    if await self._attempt(self._confirm(batch)) is None:
                        self._has_unsettled.set()
                        return
                    del self._unconfirmed[name]

    async def _confirm(self, batch: Batch) -> bool:
        await self._store.settle(batch)
        return True

    def _next_batch(self, name: str) -> Batch | None:
        if name in self._unconfirmed:
            return self._unconfirmed[name]
        unsettled = self._unsettled.pop(name, None)
        if unsettled is None:
            return None
        self._num_batches += 1
        batch = Batch(
            name=f"{self._name}-{self._num_batches}",
            key=unsettled.key,
            windows=self._windows.of(tuple(unsettled.budgets.values()), self._clock()),
            leases=tuple(unsettled.leases),
            num_tokens=unsettled.num_tokens,
            cost=unsettled.cost,
            totals=unsettled.totals,
        )
        self._unconfirmed[name] = batch
        return batch

    async def _renew_for_ever(self) -> None:
        while True:
            await asyncio.sleep(_RENEW_INTERVAL_S)
            members: dict[str, tuple[ApiKey, list[str]]] = {}
            for key, member in self._open.values():
                members.setdefault(key.name, (key, []))[1].append(member)
            for key, leases in members.values():
                await self._attempt(self._renew(key, leases))

    async def _renew(self, key: ApiKey, leases: Sequence[str]) -> bool:
        for start in range(0, len(leases), _MAX_LEASES_PER_CALL):
            await self._store.renew(key, leases[start : start + _MAX_LEASES_PER_CALL], ttl_s=_LEASE_TTL_S)
        return True

    def __repr__(self) -> str:
        state = f"local: {self.why_local}" if self.why_local else "shared"
        return f"SharedState({state}, num_open={len(self._open)}, num_unsettled={len(self._unsettled)})"


def _new_breaker() -> Breaker:
    return Breaker(num_failures_to_open=1, pause_s=_FIRST_PAUSE_S, max_pause_s=_MAX_PAUSE_S)


def _counted(hold: Hold, limits: KeyLimits) -> Hold:
    """What of `hold` the key's limits look at. That is within them, so it is a number that any store holds; what no
    limit bounds may be beyond."""
    return Hold(
        num_tokens=hold.num_tokens if limits.tokens_per_minute is not None else 0,
        cost=hold.cost if limits.budgets else 0,
    )
