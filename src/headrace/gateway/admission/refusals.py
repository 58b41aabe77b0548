"""How a limit is told to its client: the errors, and OpenAI's x-ratelimit-* fields. Pure."""

from headrace.errors import HeadraceError, RateLimitError
from headrace.gateway.admission.keys import ApiKey
from headrace.gateway.admission.limits import Hold, KeyLimits, Levels, Refusal
from headrace.gateway.admission.prices import money_text
from headrace.gateway.admission.token_bucket import UNITS, num_left, reset_s
from headrace.gateway.http.head_facts import Headers

_RATE_LINES = (
    b"x-ratelimit-limit-%b: %%d\r\nx-ratelimit-remaining-%b: %%d\r\nx-ratelimit-reset-%b: %%b\r\n"  # of one rate
)
_REQUESTS_LINES = _RATE_LINES % ((b"requests",) * 3)
_TOKENS_LINES = _RATE_LINES % ((b"tokens",) * 3)


class LimitError(RateLimitError):
    """A key has used up one of its limits. `headers` tell how far it has used the others."""

    def __init__(self, message: str, *, headers: Headers, retry_after_s: float | None, code: str | None = None) -> None:
        super().__init__(message, retry_after_s=retry_after_s, code=code)
        self.headers = headers


class BudgetError(LimitError):
    """A key has spent its budget, or would with this request."""

    error_type = "insufficient_quota"
    default_code = "insufficient_quota"


def limit_error(key: ApiKey, refusal: Refusal, hold: Hold, levels: Levels) -> LimitError:
    """The error for a request of `key` that `refusal` keeps out."""
    headers = limit_headers(key.limits, levels)
    if refusal.limit == "budget":
        return BudgetError(_budget_message(key, refusal, hold), headers=headers, retry_after_s=refusal.retry_after_s)
    return LimitError(_rate_message(key, refusal, hold), headers=headers, retry_after_s=refusal.retry_after_s)


def limit_headers(limits: KeyLimits, levels: Levels) -> Headers:
    """OpenAI's fields for the limits per minute that a key has."""
    headers: Headers = []
    if (rate := limits.requests_per_minute) is not None:
        headers += _rate_headers(b"requests", rate, levels.requests_debt)
    if (rate := limits.tokens_per_minute) is not None:
        headers += _rate_headers(b"tokens", rate, levels.tokens_debt + levels.held_tokens * UNITS)
    return headers


def limit_lines(limits: KeyLimits, levels: Levels) -> bytes:
    """`limit_headers` as they are written."""
    lines = b""
    if (rate := limits.requests_per_minute) is not None:
        lines = _REQUESTS_LINES % _rate_values(rate, levels.requests_debt)
    if (rate := limits.tokens_per_minute) is not None:
        lines += _TOKENS_LINES % _rate_values(rate, levels.tokens_debt + levels.held_tokens * UNITS)
    return lines


def headers_of(error: HeadraceError) -> Headers:
    """The fields that go with `error`."""
    return error.headers if isinstance(error, LimitError) else []


def _rate_headers(what: bytes, rate: int, debt: int) -> Headers:
    limit, remaining, reset = _rate_values(rate, debt)
    return [
        (b"x-ratelimit-limit-" + what, b"%d" % limit),
        (b"x-ratelimit-remaining-" + what, b"%d" % remaining),
        (b"x-ratelimit-reset-" + what, reset),
    ]


def _rate_values(rate: int, debt: int) -> tuple[int, int, bytes]:
    seconds = reset_s(debt, per_minute=rate)
    reset = b"%dms" % round(seconds * 1000) if seconds < 1 else _long_duration(seconds)
    return rate, num_left(debt, per_minute=rate), reset


def _long_duration(seconds: float) -> bytes:
    """As OpenAI writes it from one second on: 1.5s, 6m0s."""
    if seconds < 60:
        return f"{seconds:.3f}".rstrip("0").rstrip(".").encode("ascii") + b"s"
    minutes, rest = divmod(round(seconds), 60)
    return b"%dm%ds" % (minutes, rest)


def _rate_message(key: ApiKey, refusal: Refusal, hold: Hold) -> str:
    limits = key.limits
    if refusal.is_hopeless:
        return (
            f"The request may use {hold.num_tokens} tokens (prompt and completion), and the API key {key.name!r} may "
            f"use {limits.tokens_per_minute} a minute; shorten the prompt or lower max_tokens."
        )
    what = {
        "concurrent_requests": f"{limits.concurrent_requests} requests at a time",
        "requests_per_minute": f"{limits.requests_per_minute} requests a minute",
        "tokens_per_minute": f"{limits.tokens_per_minute} tokens a minute, and this request may use {hold.num_tokens}",
    }[refusal.limit]
    when = f"; try again in {refusal.retry_after_s:.3g} s" if refusal.retry_after_s is not None else ""
    return f"The API key {key.name!r} has reached its limit of {what}{when}."


def _budget_message(key: ApiKey, refusal: Refusal, hold: Hold) -> str:
    assert refusal.budget is not None
    budget = refusal.budget
    per = "in all" if budget.period == "total" else f"per {budget.period}"
    if refusal.is_hopeless:
        return (
            f"The request may cost {money_text(hold.cost)}, and the API key {key.name!r} may spend "
            f"{money_text(budget.amount)} {per}; shorten the prompt or lower max_tokens."
        )
    return (
        f"The API key {key.name!r} may spend {money_text(budget.amount)} {per}, and what is left of it does not cover "
        f"the {money_text(hold.cost)} that this request may cost."
    )
