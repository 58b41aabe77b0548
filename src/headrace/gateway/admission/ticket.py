"""One admitted request: its place, what it may use, and, when it is over, what it did use."""

import asyncio
from types import TracebackType
from typing import Protocol, Self

from headrace.gateway.admission.bill import NOTHING, Bill, bill_of, estimated_bill
from headrace.gateway.admission.gate import Place
from headrace.gateway.admission.prices import Price, money_text
from headrace.gateway.admission.refusals import limit_headers, limit_lines
from headrace.gateway.admission.state import Grant
from headrace.gateway.http.head import lines_of
from headrace.gateway.http.head_facts import Headers
from headrace.gateway.http.own_headers import COST, LIMITS, QUEUED_MS
from headrace.gateway.identify import Call
from headrace.gateway.usage.usage import Meter, Usage

_COST_LINE = COST + b": %b\r\n"


class Settler(Protocol):
    """Takes a request's bill."""

    def settle(self, grant: Grant, model: str, bill: Bill) -> None: ...


class Ticket:
    """Leave for one request to be forwarded. Its block is left exactly once, and then it is settled: by the engine's
    `usage` if the answer told it, by an estimate if the answer broke off or told none, and with nothing if the
    request failed or was refused."""

    __slots__ = (
        "_billed",
        "_billed_usage",
        "_call",
        "_grant",
        "_place",
        "_price",
        "_settler",
        "_why_local",
        "has_price",
        "meter",
        "waited_s",
    )

    def __init__(
        self, grant: Grant, call: Call, *, price: Price | None, place: Place, settler: Settler, why_local: str | None
    ) -> None:
        self.meter = Meter(call.route.traits.usage_form)
        self.has_price = price is not None
        """Whether its cost can be told."""
        self.waited_s = place.waited_s
        """How long it has waited for its place."""
        self._grant = grant
        self._call = call
        self._price = price
        self._place = place
        self._settler = settler
        self._why_local = why_local
        self._billed_usage: Usage | None = None
        self._billed: Bill = NOTHING

    def headers(self) -> Headers:
        """What the answer tells of the key's limits, and of its waiting."""
        headers = limit_headers(self._grant.key.limits, self._grant.levels)
        return headers + self._rare_headers()

    def lines(self) -> bytes:
        """`headers` as they are written."""
        lines = limit_lines(self._grant.key.limits, self._grant.levels)
        return lines + lines_of(self._rare_headers()) if self.waited_s or self._why_local is not None else lines

    def cost_headers(self) -> Headers:
        """The request's cost, once the answer has told its usage."""
        cost = self._cost_text()
        return [] if cost is None else [(COST, cost)]

    def cost_line(self) -> bytes:
        """`cost_headers` as they are written."""
        cost = self._cost_text()
        return b"" if cost is None else _COST_LINE % cost

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._place.give_back()
        has_left = exc_type is not None and issubclass(exc_type, asyncio.CancelledError)
        self._settler.settle(self._grant, self._call.card.id, self._bill(has_left=has_left))

    def _rare_headers(self) -> Headers:
        headers: Headers = []
        if self.waited_s:
            headers.append((QUEUED_MS, b"%.3f" % (self.waited_s * 1e3)))
        if self._why_local is not None:
            headers.append((LIMITS, b"local"))
        return headers

    def _cost_text(self) -> bytes | None:
        if self._price is None or (usage := self.meter.usage()) is None:
            return None
        return money_text(self._usage_bill(usage).cost).encode("ascii")

    def _bill(self, *, has_left: bool) -> Bill:
        meter = self.meter
        if meter.status is None:
            # The engine may have worked on it for as long as its client waited.
            is_used = meter.is_sent and has_left
            return self._estimate(num_events=0) if is_used else NOTHING
        if not 200 <= meter.status < 300:
            return NOTHING
        if (usage := meter.usage()) is not None:
            return self._usage_bill(usage)
        return self._estimate(num_events=meter.num_events)

    def _usage_bill(self, usage: Usage) -> Bill:
        """Made once for the same usage: the answer's head asks, and then the settlement."""
        if self._billed_usage is not usage:
            self._billed_usage = usage
            self._billed = bill_of(usage, self._price)
        return self._billed

    def _estimate(self, *, num_events: int) -> Bill:
        """Its prompt, and a token for each event of its stream, up to its own limit where it has one: what is set aside
        for a request without one is a guess."""
        hold = self._grant.hold
        is_limited = bool(self._call.limits_asked)
        return estimated_bill(
            prompt_tokens=hold.prompt_tokens,
            completion_tokens=min(num_events, hold.completion_tokens) if is_limited else num_events,
            price=self._price,
        )
