"""One admitted request: its place, what it may use, and, when it is over, what it did use."""

import asyncio
from types import TracebackType
from typing import Protocol, Self

from headrace.gateway.admission.bill import NOTHING, Bill, bill_of, estimated_bill
from headrace.gateway.admission.charge import Charge
from headrace.gateway.admission.gate import Place
from headrace.gateway.admission.prices import Price, money_text
from headrace.gateway.admission.refusals import limit_headers
from headrace.gateway.admission.state import Grant
from headrace.gateway.http.message import Headers
from headrace.gateway.http.own_headers import COST, LIMITS, QUEUED_MS
from headrace.gateway.routes import UsageForm
from headrace.gateway.usage.usage import Meter


class Settler(Protocol):
    """Takes a request's bill."""

    def settle(self, grant: Grant, model: str, bill: Bill) -> None: ...


class Ticket:
    """Leave for one request to be forwarded. Its block is left exactly once, and then it is settled: by the engine's
    `usage` if the answer told it, by an estimate if the answer broke off or told none, and with nothing if the
    request failed or was refused."""

    __slots__ = ("_charge", "_grant", "_model", "_place", "_price", "_settler", "_why_local", "meter")

    def __init__(
        self,
        *,
        grant: Grant,
        model: str,
        charge: Charge,
        price: Price | None,
        place: Place,
        settler: Settler,
        why_local: str | None,
        usage_form: UsageForm = "openai",
    ) -> None:
        self.meter = Meter(usage_form)
        self._grant = grant
        self._model = model
        self._charge = charge
        self._price = price
        self._place = place
        self._settler = settler
        self._why_local = why_local

    @property
    def has_price(self) -> bool:
        """Whether its cost can be told."""
        return self._price is not None

    @property
    def waited_s(self) -> float:
        """How long it has waited for its place."""
        return self._place.waited_s

    def headers(self) -> Headers:
        """What the answer tells of the key's limits, and of its waiting."""
        headers = limit_headers(self._grant.key.limits, self._grant.levels)
        if self.waited_s:
            headers.append((QUEUED_MS, b"%.3f" % (self.waited_s * 1e3)))
        if self._why_local is not None:
            headers.append((LIMITS, b"local"))
        return headers

    def cost_headers(self) -> Headers:
        """The request's cost, once the answer has told its usage."""
        usage = self.meter.usage()
        if self._price is None or usage is None:
            return []
        return [(COST, money_text(bill_of(usage, self._price).cost).encode("ascii"))]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._place.give_back()
        has_left = exc_type is not None and issubclass(exc_type, asyncio.CancelledError)
        self._settler.settle(self._grant, self._model, self._bill(has_left=has_left))

    def _bill(self, *, has_left: bool) -> Bill:
        meter = self.meter
        if meter.status is None:
            # The engine may have worked on it for as long as its client waited.
            is_used = meter.is_sent and has_left
            return self._estimate(num_events=0) if is_used else NOTHING
        if not 200 <= meter.status < 300:
            return NOTHING
        if (usage := meter.usage()) is not None:
            return bill_of(usage, self._price)
        return self._estimate(num_events=meter.num_events)

    def _estimate(self, *, num_events: int) -> Bill:
        """Its prompt, and a token for each event of its stream."""
        return estimated_bill(
            prompt_tokens=self._charge.prompt_tokens,
            completion_tokens=min(num_events, self._charge.completion_tokens),
            price=self._price,
        )
