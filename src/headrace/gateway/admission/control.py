"""The one door of admission: who asks, whether the limits allow it, and in which order it goes on."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from headrace.errors import HeadraceError, PermissionDeniedError
from headrace.gateway.admission.bill import NOTHING, Bill
from headrace.gateway.admission.charge import hold_of
from headrace.gateway.admission.clock import steady_clock
from headrace.gateway.admission.gate import GateStatistics, QueueTicket, RequestGate
from headrace.gateway.admission.key_watch import KeyWatch
from headrace.gateway.admission.keys import ANONYMOUS, ApiKey, KeyRing, given_digest, without_keys
from headrace.gateway.admission.limits import Hold
from headrace.gateway.admission.local_state import LocalState
from headrace.gateway.admission.prices import Price, parse_prices
from headrace.gateway.admission.priority import PriorityClass, asked_class, class_of
from headrace.gateway.admission.settings import AdmissionSettings
from headrace.gateway.admission.state import Grant, LimitState, Report
from headrace.gateway.admission.ticket import Ticket
from headrace.gateway.admission.usage_totals import ModelTotals, sum_of
from headrace.gateway.http.message import Request
from headrace.gateway.identify import Call
from headrace.gateway.prompt.tokens import PromptCount

_IN_MEMORY = "memory"


class AdmissionObserver(Protocol):
    """Counts what admission decides."""

    def on_refused(self, error: HeadraceError) -> None: ...

    def on_settled(self, model: str, bill: Bill) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionStatistics:
    """Admission at one moment."""

    num_keys: int
    why_local: str | None
    why_keys_stale: str | None
    gate: GateStatistics
    totals: dict[str, ModelTotals]
    """What each key has used through this gateway."""


class Admission:
    """Admits requests one by one. `places(model)` is how many the endpoints of a model take; None: any number."""

    def __init__(
        self,
        settings: AdmissionSettings,
        *,
        places: Callable[[str], int | None],
        observer: AdmissionObserver,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._settings = settings
        self._clock = clock or steady_clock()
        self._observer = observer
        self._prices = parse_prices(settings.price)
        self._local = LocalState(clock=self._clock)
        self._state: LimitState = _state_of(settings, local=self._local, clock=self._clock)
        self._keys = _key_watch_of(settings, on_change=self._forget_revoked)
        self._gate = RequestGate(
            places=places,
            max_waiting=settings.max_queued_requests,
            ageing_s=settings.queue_ageing_s,
            timeout_s=settings.queue_timeout_s,
        )

    @property
    def has_keys(self) -> bool:
        """Whether requests must bring a key, which then is the gateway's business and nobody else's."""
        return self._keys is not None

    @property
    def is_metering(self) -> bool:
        """Whether every answer's usage must be known."""
        return self.has_keys or bool(self._prices)

    async def start(self) -> None:
        """Read the keys and begin. Raises SettingsError."""
        if self._keys is not None:
            await self._keys.start()
        await self._state.start()

    async def aclose(self) -> None:
        """Settle what can be settled, and end. Idempotent."""
        if self._keys is not None:
            await self._keys.aclose()
        await self._state.aclose()

    def identify(self, request: Request) -> ApiKey:
        """Whose request it is; the key is taken off it, and goes nowhere else. Raises AuthenticationError."""
        if self._keys is None:
            return ANONYMOUS
        digest = request.facts.of(given_digest)
        request.change_headers(without_keys)
        try:
            return self._keys.ring.find(digest, now_s=self._clock())
        except HeadraceError as error:
            self._observer.on_refused(error)
            raise

    def admit_now(self, key: ApiKey, call: Call, prompt: PromptCount) -> Ticket | None:
        """What `admit` gives where nobody need be waited for, as where limits are counted here and no queue stands;
        None, with nothing held, where it must be awaited. Raises what `admit` raises."""
        try:
            price, hold, _ = self._question(key, call, prompt)
            if not self._gate.is_open(call.card.id) or (grant := self._state.take_now(key, hold)) is None:
                return None
        except HeadraceError as error:
            self._observer.on_refused(error)
            raise
        place = self._gate.enter_now(call.card.id)
        return Ticket(grant, call, price=price, place=place, settler=self, why_local=self._state.why_local)

    async def admit(self, key: ApiKey, call: Call, prompt: PromptCount) -> Ticket:
        """Leave to forward `call`, once it is its turn. Raises PermissionDeniedError, LimitError, OverloadedError, and
        InvalidRequestError for an unknown priority; raising, or cancelled, it leaves nothing held."""
        try:
            return await self._admit(key, call, prompt)
        except HeadraceError as error:
            self._observer.on_refused(error)
            raise

    async def report(self, key: ApiKey) -> Report:
        """What `key` has used."""
        return await self._state.report(key)

    def settle(self, grant: Grant, model: str, bill: Bill) -> None:
        """A request is over; for its Ticket to call."""
        self._state.settle(grant, model, bill)
        self._observer.on_settled(model, bill)

    def wake(self) -> None:
        """Endpoints may have come or gone."""
        self._gate.wake()

    def statistics(self) -> AdmissionStatistics:
        totals = self._local.totals
        return AdmissionStatistics(
            num_keys=len(self._keys.ring) if self._keys else 0,
            why_local=self._state.why_local,
            why_keys_stale=self._keys.why_stale if self._keys else None,
            gate=self._gate.statistics(),
            totals={name: sum_of(totals.of(name)) for name in totals.names()},
        )

    async def _admit(self, key: ApiKey, call: Call, prompt: PromptCount) -> Ticket:
        price, hold, priority = self._question(key, call, prompt)
        grant = await self._state.take(key, hold)
        try:
            place = await self._gate.enter(
                QueueTicket(model=call.model, key=key.name, priority=priority, weight=key.weight, cost=hold.num_tokens)
            )
        except BaseException:
            self._state.settle(grant, call.model, NOTHING)
            raise
        return Ticket(grant, call, price=price, place=place, settler=self, why_local=self._state.why_local)

    def _question(self, key: ApiKey, call: Call, prompt: PromptCount) -> tuple[Price | None, Hold, PriorityClass]:
        """What is asked for: at which price, how much at most, and in which class."""
        model = call.card.id
        price = self._prices.of(model)
        if (key.models is not None and model not in key.models) or (price is None and key.limits.budgets):
            raise _not_allowed(key, model)
        hold = hold_of(call, prompt, price=price, default_completion_tokens=self._settings.default_completion_tokens)
        asked, long_prompt_tokens = call.request.facts.of(asked_class), self._settings.long_prompt_tokens
        if asked is None and long_prompt_tokens is None:
            return price, hold, key.priority
        priority = class_of(
            asked=asked,
            allowed=key.priority,
            num_prompt_tokens=hold.prompt_tokens,
            long_prompt_tokens=long_prompt_tokens,
        )
        return price, hold, priority

    def _forget_revoked(self, ring: KeyRing) -> None:
        self._state.forget_except(ring.keys)

    def __repr__(self) -> str:
        return f"Admission({self._keys or 'open to all'}, {self._state!r}, {self._gate!r})"


def _not_allowed(key: ApiKey, model: str) -> PermissionDeniedError:
    if not key.may_use(model):
        return PermissionDeniedError(
            f"The API key {key.name!r} may not use the model {model!r}.", param="model", code="model_not_allowed"
        )
    return PermissionDeniedError(
        f"The model {model!r} has no price here, so the API key {key.name!r}, which has a budget, cannot use it.",
        param="model",
        code="model_without_price",
    )


def _state_of(settings: AdmissionSettings, *, local: LocalState, clock: Callable[[], float]) -> LimitState:
    if settings.state == _IN_MEMORY:
        return local
    from headrace.gateway.admission.redis_store import connect
    from headrace.gateway.admission.shared_state import SharedState

    store = connect(settings.state, timeout_s=settings.state_timeout_s)
    return SharedState(store, local=local, clock=clock, timeout_s=settings.state_timeout_s)


def _key_watch_of(settings: AdmissionSettings, *, on_change: Callable[[KeyRing], None]) -> KeyWatch | None:
    if settings.keys_file is None:
        return None
    return KeyWatch(Path(settings.keys_file), interval_s=settings.keys_interval_s, on_change=on_change)
