import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.gateway.parity import Comparison, ParityLedger, compare


@pytest.mark.parametrize(
    ("predicted", "reported", "result", "reason", "off"),
    [
        (7, 7, "exact", "equal", 0),
        (9, 7, "drift", "predicted_more", 2),
        (6, 7, "drift", "predicted_fewer", -1),
        (None, 7, "not_compared", "no_tokenizer", 0),
        (7, None, "not_compared", "no_usage", 0),
        (None, None, "not_compared", "no_tokenizer", 0),
    ],
)
def test_the_verdict(predicted: int | None, reported: int | None, result: str, reason: str, off: int) -> None:
    comparison = compare(predicted=predicted, why_not="no_tokenizer", reported=reported)

    assert (comparison.result, comparison.reason, comparison.num_tokens_off) == (result, reason, off)


def test_the_ratio_counts_only_what_was_compared() -> None:
    ledger = ParityLedger()
    for predicted, reported in [(1, 1), (1, 1), (1, 1), (1, 2), (None, 3)]:
        ledger.count("demo", compare(predicted=predicted, why_not="tokenize_timeout", reported=reported))

    (statistics,) = ledger.statistics()
    assert statistics.exact_ratio == 0.75
    assert statistics.reasons == {"equal": 3, "predicted_fewer": 1, "tokenize_timeout": 1}


def test_nothing_compared_has_no_ratio() -> None:
    ledger = ParityLedger()
    ledger.count("demo", Comparison(result="not_compared", reason="no_usage"))

    assert ledger.statistics()[0].exact_ratio is None


@given(st.lists(st.tuples(st.none() | st.integers(0, 9), st.none() | st.integers(0, 9))))
def test_every_comparison_is_counted_once(pairs: list[tuple[int | None, int | None]]) -> None:
    ledger = ParityLedger()
    for predicted, reported in pairs:
        ledger.count("demo", compare(predicted=predicted, why_not="x", reported=reported))

    total = sum(one.num_exact + one.num_drift + one.num_not_compared for one in ledger.statistics())
    assert total == len(pairs)
