"""What tokens cost, exactly: money is whole picodollars (1e-12), so that sums of costs have no rounding. Pure.

A price of six decimals per million tokens is a whole number of picodollars per token. The currency is the operator's;
"dollar" here means one of whatever the prices are written in.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from headrace.errors import SettingsError

PICO = 10**12
"""Picodollars in a dollar."""

_TOKENS_PER_PRICE = 10**6
_MAX_DOLLARS = Decimal(10**6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Picodollars per token of one model."""

    input: int
    cached_input: int
    output: int

    def cost_of(self, *, prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> int:
        """Picodollars; `cached_tokens` are those of the prompt that were cached, and not more than all of it."""
        num_new = prompt_tokens - cached_tokens
        return num_new * self.input + cached_tokens * self.cached_input + completion_tokens * self.output


class PriceList:
    """The price of each model: its own, else the one for all models, else none."""

    def __init__(self, prices: Mapping[str | None, Price]) -> None:
        self._prices = dict(prices)

    def of(self, model: str) -> Price | None:
        """The price of `model`; None if it has none."""
        return self._prices.get(model) or self._prices.get(None)

    def __bool__(self) -> bool:
        """Whether anything has a price."""
        return bool(self._prices)

    def __repr__(self) -> str:
        return f"PriceList(num_prices={len(self._prices)})"


def parse_prices(entries: tuple[str, ...]) -> PriceList:
    """`MODEL=INPUT/CACHED/OUTPUT` (or `INPUT/OUTPUT`) in dollars per million tokens; without `MODEL=` for all others.

    Raises SettingsError for what cannot be read, and for a model that has a price already.
    """
    prices: dict[str | None, Price] = {}
    for entry in entries:
        name, separator, text = entry.rpartition("=")
        model = name if separator else None
        if model == "":
            raise SettingsError(f"price {entry!r} names no model; write MODEL=INPUT/CACHED/OUTPUT", param="price")
        if model in prices:
            which = f"model {model!r}" if model else "all models"
            raise SettingsError(f"price {entry!r}: {which} has one already; give one each", param="price")
        prices[model] = _parse_price(text, entry=entry)
    return PriceList(prices)


def parse_money(text: str) -> int:
    """Picodollars of a decimal number of dollars, of twelve decimals at most. Raises ValueError."""
    try:
        amount = Decimal(text)
    except InvalidOperation:
        raise ValueError(f"{text!r} is not a decimal number") from None
    if not amount.is_finite() or not 0 <= amount <= _MAX_DOLLARS:
        raise ValueError(f"{text!r} is not between 0 and {_MAX_DOLLARS}")
    pico = amount * PICO
    if pico != pico.to_integral_value():
        raise ValueError(f"{text!r} has more than twelve decimals")
    return int(pico)


def dollars(pico: int) -> Decimal:
    """The same money as an exact decimal number, without needless zeros."""
    return Decimal(money_text(pico))


def money_text(pico: int) -> str:
    """`dollars` as plain digits, never with an exponent. `pico` is not below 0."""
    return f"{pico // PICO}.{pico % PICO:012}".rstrip("0").rstrip(".")


def _parse_price(text: str, *, entry: str) -> Price:
    parts = text.split("/")
    try:
        if len(parts) not in {2, 3}:
            raise ValueError("expected INPUT/CACHED/OUTPUT or INPUT/OUTPUT")
        values = [_per_token(part) for part in parts]
    except ValueError as error:
        raise SettingsError(f"price {entry!r} cannot be read: {error}", param="price") from error
    return Price(input=values[0], cached_input=values[0] if len(values) == 2 else values[1], output=values[-1])


def _per_token(text: str) -> int:
    per_token, rest = divmod(parse_money(text.strip()), _TOKENS_PER_PRICE)
    if rest:
        raise ValueError(f"{text!r} has more than six decimals")
    return per_token
