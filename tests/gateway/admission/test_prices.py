from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import SettingsError
from headrace.gateway.admission.bill import bill_of
from headrace.gateway.admission.prices import PICO, Price, dollars, money_text, parse_money, parse_prices
from headrace.gateway.usage.forms import PromptTokensDetails, Usage


def test_a_price_has_three_parts_or_two_and_the_bare_one_is_for_all_others() -> None:
    prices = parse_prices(("org/a=b=0.15/0.075/0.60", "1/2"))

    assert prices.of("org/a=b") == Price(input=150_000, cached_input=75_000, output=600_000)
    assert prices.of("other") == Price(input=10**6, cached_input=10**6, output=2 * 10**6)
    assert parse_prices(("a=1/2",)).of("other") is None


@pytest.mark.parametrize(
    "entry", ["a=1", "a=1/2/3/4", "=1/2", "a=x/1", "a=-1/1", "a=0.0000001/1", "a=nan/1", "a=1e9/1"]
)
def test_a_price_that_cannot_be_read_is_refused(entry: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_prices((entry,))

    assert caught.value.param == "price"
    assert repr(entry) in caught.value.message


def test_a_model_has_one_price() -> None:
    with pytest.raises(SettingsError, match="has one already"):
        parse_prices(("a=1/2", "a=1/3"))


@given(pico=st.integers(0, 10**19))
def test_money_is_written_exactly_and_without_an_exponent(pico: int) -> None:
    text = money_text(pico)

    assert dollars(pico) * PICO == pico
    assert "e" not in text.lower()
    assert Decimal(text) == dollars(pico)
    if pico <= 10**18:
        assert parse_money(text) == pico


usages = st.builds(
    Usage,
    prompt_tokens=st.integers(0, 10**6),
    completion_tokens=st.integers(0, 10**6) | st.none(),
    prompt_tokens_details=st.builds(PromptTokensDetails, cached_tokens=st.integers(0, 10**6) | st.none()) | st.none(),
)


@given(
    usages=st.lists(usages, max_size=30),
    price=st.builds(
        Price, *[], input=st.integers(0, 10**8), cached_input=st.integers(0, 10**8), output=st.integers(0, 10**8)
    ),
)
def test_bills_add_up_to_the_bill_of_all_usages_together(usages: list[Usage], price: Price) -> None:
    bills = [bill_of(usage, price) for usage in usages]
    prompt = sum(bill.prompt_tokens for bill in bills)
    cached = sum(bill.cached_tokens for bill in bills)
    completion = sum(bill.completion_tokens for bill in bills)

    assert sum(bill.cost for bill in bills) == (
        (prompt - cached) * price.input + cached * price.cached_input + completion * price.output
    )
    assert all(bill.cached_tokens <= bill.prompt_tokens for bill in bills)


def test_a_negative_usage_pays_nobody() -> None:
    bill = bill_of(Usage(prompt_tokens=-5, completion_tokens=-1), Price(input=1, cached_input=1, output=1))

    assert (bill.num_tokens, bill.cost) == (0, 0)
