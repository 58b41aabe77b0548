"""/v1/usage: what the asking key has used, what that cost, and how far its limits reach."""

from decimal import Decimal

import msgspec

from headrace.gateway.admission.control import Admission
from headrace.gateway.admission.keys import ApiKey
from headrace.gateway.admission.limits import KeyLimits, Levels
from headrace.gateway.admission.prices import dollars
from headrace.gateway.admission.state import Report
from headrace.gateway.admission.token_bucket import UNITS, num_left
from headrace.gateway.admission.usage_totals import ModelTotals, sum_of
from headrace.gateway.http.answers import answer_json
from headrace.gateway.http.message import MethodNotAllowedError, Request
from headrace.gateway.http.response_writer import ResponseWriter

_PATH = "/v1/usage"


class UsageView(msgspec.Struct, kw_only=True):
    """The use of one model, or of all."""

    num_requests: int
    num_estimated: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost: Decimal


class RateView(msgspec.Struct, kw_only=True):
    """A limit and what is left of it."""

    limit: int
    remaining: int


class BudgetView(msgspec.Struct, kw_only=True):
    """A budget in its present window."""

    period: str
    amount: Decimal
    spent: Decimal
    held: Decimal
    """Set aside for requests under way."""
    ends: float | None
    """Seconds since the epoch."""


class KeyUsage(msgspec.Struct, kw_only=True):
    """The answer."""

    object: str = "usage"
    key: str
    total: UsageView
    models: dict[str, UsageView]
    limits: dict[str, RateView]
    budgets: list[BudgetView]


_ENCODER = msgspec.json.Encoder(decimal_format="number")


class UsageRoutes:
    """Answers /v1/usage."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    async def answer(self, request: Request, client: ResponseWriter, key: ApiKey) -> bool:
        """Answer the request if its path is this one; False if it is not. Raises MethodNotAllowedError."""
        if request.path != _PATH:
            return False
        if request.method not in {"GET", "HEAD"}:
            raise MethodNotAllowedError(f"{_PATH} takes GET, not {request.method}.", allow="GET, HEAD")
        report = await self._admission.report(key)
        headers = [(b"cache-control", b"no-store")]
        answer_json(client, _ENCODER.encode(key_usage(key, report)), headers=headers)
        return True


def key_usage(key: ApiKey, report: Report) -> KeyUsage:
    """What the answer says."""
    return KeyUsage(
        key=key.name,
        total=_view(sum_of(report.totals)),
        models={model: _view(totals) for model, totals in sorted(report.totals.items())},
        limits=_rates(key.limits, report.levels),
        budgets=_budgets(key.limits, report),
    )


def _view(totals: ModelTotals) -> UsageView:
    return UsageView(
        num_requests=totals.num_requests,
        num_estimated=totals.num_estimated,
        prompt_tokens=totals.prompt_tokens,
        cached_tokens=totals.cached_tokens,
        completion_tokens=totals.completion_tokens,
        cost=dollars(totals.cost),
    )


def _rates(limits: KeyLimits, levels: Levels) -> dict[str, RateView]:
    views: dict[str, RateView] = {}
    if (rate := limits.requests_per_minute) is not None:
        views["requests_per_minute"] = RateView(limit=rate, remaining=num_left(levels.requests_debt, per_minute=rate))
    if (rate := limits.tokens_per_minute) is not None:
        debt = levels.tokens_debt + levels.held_tokens * UNITS
        views["tokens_per_minute"] = RateView(limit=rate, remaining=num_left(debt, per_minute=rate))
    if (limit := limits.concurrent_requests) is not None:
        views["concurrent_requests"] = RateView(limit=limit, remaining=max(0, limit - levels.num_open))
    return views


def _budgets(limits: KeyLimits, report: Report) -> list[BudgetView]:
    return [
        BudgetView(
            period=budget.period,
            amount=dollars(budget.amount),
            spent=dollars(spent),
            held=dollars(report.levels.held_cost),
            ends=window.end_s,
        )
        for budget, spent, window in zip(limits.budgets, report.levels.spent, report.windows, strict=True)
    ]
