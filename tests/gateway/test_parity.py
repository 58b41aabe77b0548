import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from headrace.errors import ContextLengthError
from headrace.gateway.endpoints.endpoint import ModelCard, ServedModel
from headrace.gateway.http.message import Request
from headrace.gateway.identify import identify
from headrace.gateway.parity import (
    Comparison,
    Observed,
    ParityLedger,
    Patience,
    PromptKind,
    TokenInTrust,
    TrustState,
    compare,
    compare_cached,
)
from headrace.gateway.parity.agreement import Agreement
from headrace.gateway.parity.check import ParityCheck
from headrace.gateway.parity.instruments import ParityInstruments
from headrace.gateway.prompt.tokens import PromptCount

CHAT = "/v1/chat/completions"
PATIENCE = Patience(num_drifts=3, num_exact=5)


def observed(predicted: int | None, reported: int | None, **changes: object) -> Observed:
    fields: dict[str, object] = {
        "model": "demo",
        "endpoint": "http://e",
        "route": CHAT,
        "kind": "plain",
        "comparison": compare(predicted=predicted, why_not="tokenize_timeout", reported=reported),
        "num_prompt_tokens": reported,
    }
    return Observed(**(fields | changes))


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


@pytest.mark.parametrize(
    ("predicted", "stored", "reported", "has_same_prompt", "result", "cause"),
    [
        (64, 64, 64, True, "equal", "equal"),
        (64, 64, None, True, "not_compared", "not_told"),
        (64, 64, 60, True, "over", "within_a_block"),
        (64, 64, 79, True, "under", "within_a_block"),
        (64, 64, 0, False, "over", "tokens_differ"),
        (64, 32, 32, True, "over", "not_arrived"),
        (64, 64, 32, True, "over", "evicted"),
        (64, 64, 0, True, "over", "emptied"),
        (0, 0, 64, True, "under", "unknown_prefix"),
        (32, 32, 64, False, "under", "tokens_differ"),
    ],
)
def test_why_cached_tokens_are_not_as_predicted(
    predicted: int, stored: int, reported: int | None, has_same_prompt: bool, result: str, cause: str
) -> None:
    comparison = compare_cached(
        predicted, num_stored=stored, block_size=16, reported=reported, has_same_prompt=has_same_prompt
    )

    assert (comparison.result, comparison.cause) == (result, cause)
    assert comparison.num_tokens_off == (0 if reported is None else predicted - reported)


def test_the_ratio_counts_only_what_was_compared() -> None:
    ledger = ParityLedger()
    for predicted, reported in [(1, 1), (1, 1), (1, 1), (1, 2), (None, 3)]:
        ledger.count(observed(predicted, reported), time_s=1.0)

    (statistics,) = ledger.statistics()
    assert statistics.exact_ratio == 0.75
    assert statistics.reasons == {"equal": 3, "predicted_fewer": 1, "tokenize_timeout": 1}


def test_nothing_compared_has_no_ratio() -> None:
    ledger = ParityLedger()
    ledger.count(observed(None, 3, comparison=Comparison(result="not_compared", reason="no_usage")), time_s=1.0)

    assert ledger.statistics()[0].exact_ratio is None


@given(st.lists(st.tuples(st.none() | st.integers(0, 9), st.none() | st.integers(0, 9))))
def test_every_comparison_is_counted_once(pairs: list[tuple[int | None, int | None]]) -> None:
    ledger = ParityLedger()
    for predicted, reported in pairs:
        ledger.count(observed(predicted, reported), time_s=1.0)

    total = sum(one.num_exact + one.num_drift + one.num_not_compared for one in ledger.statistics())
    assert total == len(pairs)


@given(
    st.lists(
        st.tuples(
            *(st.integers(7, 8), st.integers(7, 8), st.sampled_from(["plain", "ids"])),
            *(st.sampled_from(["ids", "text", "text in place of ids"]), st.sampled_from([CHAT, "/v1/completions"])),
        ),
        max_size=60,
    )
)
def test_counting_equal_counts_the_short_way_changes_no_verdict_and_no_number(
    answers: list[tuple[int, int, PromptKind, str, str]],
) -> None:
    ledger, expected = ParityLedger(PATIENCE), ParityLedger(PATIENCE)
    for predicted, reported, kind, sent, route in answers:
        could_send_ids = sent != "text"
        answer = observed(predicted, reported, kind=kind, route=route, sent_ids=sent == "ids")
        answer = replace(answer, could_send_ids=could_send_ids)
        for one in (ledger, expected):
            one.trust(model="demo", endpoint="http://e", route=route)
        is_short = answer.comparison.result == "exact" and (answer.sent_ids or not could_send_ids)
        if not (is_short and ledger.count_equal("demo", route=route, kind=kind, sent_ids=answer.sent_ids)):
            ledger.count(answer, time_s=1.0)
        expected.count(answer, time_s=1.0)
        assert ledger.statistics() == expected.statistics()
        assert ledger.is_drifting("demo") == bool(expected.statistics()[0].drifting)


def test_nothing_equal_is_counted_the_short_way_while_a_verdict_may_change() -> None:
    ledger = ParityLedger(PATIENCE)
    assert not ledger.count_equal("demo", route=CHAT, kind="plain", sent_ids=False)
    drift(ledger)

    assert not ledger.count_equal("demo", route=CHAT, kind="plain", sent_ids=False)
    assert ledger.statistics()[0].num_exact == 0


# verdicts


@given(st.lists(st.booleans(), max_size=200))
def test_a_verdict_takes_enough_differences_and_enough_equal_counts_in_a_row(outcomes: list[bool]) -> None:
    agreement = Agreement(PATIENCE)
    was_exact, num_drifts, num_in_a_row = True, 0, 0
    for is_exact in outcomes:
        has_changed = agreement.note(is_exact=is_exact)
        num_in_a_row = num_in_a_row + 1 if is_exact else 0
        num_drifts += not is_exact
        assert has_changed == (agreement.is_exact != was_exact)
        if has_changed and not agreement.is_exact:
            assert num_drifts >= PATIENCE.num_drifts
        if has_changed and agreement.is_exact:
            assert num_in_a_row >= PATIENCE.num_exact
            num_drifts = 0
        was_exact = agreement.is_exact


def test_a_steady_share_of_differences_is_a_drift() -> None:
    agreement = Agreement(PATIENCE)
    for number in range(60):
        agreement.note(is_exact=number % 3 != 0)

    assert not agreement.is_exact


def test_rare_differences_are_not() -> None:
    agreement = Agreement(PATIENCE)
    for number in range(500):
        agreement.note(is_exact=number % 10 != 0)

    assert agreement.is_exact


def test_a_verdict_that_comes_back_takes_longer_to_lift() -> None:
    agreement = Agreement(PATIENCE)
    for _ in range(3):
        agreement.note(is_exact=False)
    for _ in range(5):
        agreement.note(is_exact=True)
    for _ in range(3):
        agreement.note(is_exact=False)
    for _ in range(9):
        agreement.note(is_exact=True)

    assert not agreement.is_exact
    agreement.note(is_exact=True)
    assert agreement.is_exact


# token-in


def trusted(*, audit_every: int = 1000) -> TokenInTrust:
    trust = TokenInTrust(PATIENCE, audit_every=audit_every)
    trust.note_proof("equal")
    return trust


def test_token_in_begins_with_trials_as_text() -> None:
    trust = TokenInTrust(PATIENCE)
    for _ in range(2):
        assert trust.why_text() == "trial"
        trust.note(is_exact=True, sent_ids=False)

    assert trust.why_text() is None


def test_equal_ids_of_examples_make_trials_needless() -> None:
    assert trusted().why_text() is None


def test_ids_that_differ_are_not_made_good_by_equal_counts() -> None:
    trust = TokenInTrust(PATIENCE)
    trust.note_proof("differs")
    for _ in range(50):
        trust.note(is_exact=True, sent_ids=False)

    assert trust.why_text() == "proof_differs"


def test_one_in_so_many_is_sent_as_text_to_be_counted() -> None:
    trust = trusted(audit_every=4)

    assert [trust.why_text() for _ in range(9)] == [None, None, None, "audit", None, None, None, "audit", None]


def test_a_difference_is_looked_into_at_once_and_forgiven_when_it_was_the_only_one() -> None:
    trust = trusted()
    trust.note(is_exact=False, sent_ids=True)
    assert trust.why_text() == "doubted"

    trust.note(is_exact=True, sent_ids=False)
    assert trust.why_text() is None


def test_differences_demote_and_many_equal_counts_of_text_restore() -> None:
    trust = trusted()
    changes = [trust.note(is_exact=False, sent_ids=False) for _ in range(3)]
    assert changes == [False, False, True]
    assert trust.why_text() == "demoted"

    changes = [trust.note(is_exact=True, sent_ids=False) for _ in range(5)]
    assert changes == [False, False, False, False, True]
    assert trust.why_text() is None


def test_equal_counts_of_ids_prove_nothing() -> None:
    trust = trusted()
    for _ in range(3):
        trust.note(is_exact=False, sent_ids=True)
        for _ in range(50):
            trust.note(is_exact=True, sent_ids=True)

    assert trust.state is TrustState.DEMOTED


def drift(ledger: ParityLedger, number: int = 3, **changes: object) -> list[object]:
    return [ledger.count(observed(8, 9, **changes), time_s=1.0) for _ in range(number)]


def test_a_model_that_drifts_has_estimates_of_that_kind_of_prompt_alone() -> None:
    ledger = ParityLedger(PATIENCE)
    prompt = PromptCount(total=8, longest=8)
    drift(ledger)

    judged = ledger.judged(prompt, model="demo", route=CHAT, kind="plain")
    assert (judged.why, judged.total, judged.longest) == ("drift", 8, None)
    assert ledger.judged(prompt, model="demo", route=CHAT, kind="tools") is prompt
    assert ledger.judged(prompt, model="demo", route="/v1/completions", kind="plain") is prompt
    assert ledger.judged(prompt, model="other", route=CHAT, kind="plain") is prompt
    assert ledger.statistics()[0].drifting == (f"{CHAT} plain",)


def test_a_prompt_that_seems_too_long_is_an_endpoints_to_judge_while_counts_of_its_kind_differ() -> None:
    ledger = ParityLedger(PATIENCE)
    check = ParityCheck(ledger, ParityInstruments(CollectorRegistry()))
    body = b'{"model":"demo","messages":[{"role":"user","content":"Hi"}]}'
    request = Request(method="POST", target=CHAT.encode(), headers=[], is_http10=False, keep_alive=True, body=body)
    served = ServedModel(card=ModelCard(id="demo"), raw=msgspec.Raw(b"{}"))
    call = identify(request, models={"demo": served}, request_id=b"1")
    error = ContextLengthError("too long")

    with pytest.raises(ContextLengthError):
        check.too_long(call, error)
    drift(ledger)
    prompt = check.too_long(call, error)

    assert (prompt.why, prompt.total, prompt.longest) == ("drift", None, None)


def test_it_has_exact_counts_again_once_they_agree() -> None:
    ledger = ParityLedger(PATIENCE)
    drift(ledger)
    for _ in range(5):
        ledger.count(observed(8, 8), time_s=1.0)

    prompt = PromptCount(total=8, longest=8)
    assert ledger.judged(prompt, model="demo", route=CHAT, kind="plain") is prompt


def test_only_requests_that_could_go_as_ids_bear_on_token_in() -> None:
    ledger = ParityLedger(PATIENCE)
    trust = ledger.trust(model="demo", endpoint="http://e", route=CHAT)
    trust.note_proof("equal")
    drift(ledger, could_send_ids=False)
    assert trust.state is TrustState.TRUSTED

    assert drift(ledger, could_send_ids=True) == [None, None, "demoted"]
    assert ledger.trust(model="demo", endpoint="http://f", route=CHAT).state is TrustState.UNTRIED


def test_an_endpoint_that_is_started_anew_starts_anew_here() -> None:
    ledger = ParityLedger(PATIENCE)
    drift(ledger, could_send_ids=True)
    ledger.forget_endpoint("http://e")

    assert ledger.trust(model="demo", endpoint="http://e", route=CHAT).state is TrustState.UNTRIED


def test_a_drift_is_told_loudly_with_numbers_and_without_the_prompt(caplog: pytest.LogCaptureFixture) -> None:
    drift(ParityLedger(PATIENCE), could_send_ids=True)

    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 2
    assert "last by 1 of 9 tokens" in errors[0]
    assert "demoted" in errors[1]


def test_the_last_differences_are_kept_and_no_more() -> None:
    ledger = ParityLedger(PATIENCE)
    drift(ledger, 100)

    (statistics,) = ledger.statistics()
    assert len(statistics.examples) == 20
    assert (statistics.examples[0].num_prompt_tokens, statistics.examples[0].num_tokens_off) == (9, -1)


def test_metrics_say_who_drifts_by_how_much_and_who_is_demoted() -> None:
    registry = CollectorRegistry()
    instruments, ledger = ParityInstruments(registry), ParityLedger(PATIENCE)
    drift(ledger, could_send_ids=True)
    instruments.count(observed(8, 9))
    instruments.show(ledger)

    at = {"model": "demo", "endpoint": "http://e"}
    value = registry.get_sample_value
    assert value("headrace_parity_answers_total", {**at, "result": "drift", "reason": "plain"}) == 1
    assert value("headrace_parity_tokens_off_sum", {"model": "demo", "direction": "predicted_fewer"}) == 1
    assert value("headrace_parity_counts_are_estimates", {"model": "demo"}) == 1
    assert value("headrace_parity_token_in_demoted", {**at, "route": CHAT}) == 1
