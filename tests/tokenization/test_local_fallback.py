import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import SettingsError
from headrace.tokenization import ByteTokenizer
from headrace.tokenization.lanes import Finished
from headrace.tokenization.local_fallback import (
    Declined,
    LocalFallback,
    LocalFallbackSettings,
    LocalGuard,
    SpeedEstimate,
    is_wordy,
)
from headrace.tokenization.tokenizer import TokenIds

WORDS = "some words of a text "


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class TimedTokenizer(ByteTokenizer):
    """Takes `s_per_byte` on a clock of its own, and fails for `crash`."""

    def __init__(self, clock: Clock, *, s_per_byte: float = 1e-7) -> None:
        super().__init__()
        self.s_per_byte = s_per_byte
        self._clock = clock

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[TokenIds]:
        self._clock.now_s += self.s_per_byte * sum(map(len, texts))
        if "crash" in texts:
            raise RuntimeError("boom")
        return super().encode_batch(texts, add_special_tokens=add_special_tokens)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tokenizer(clock: Clock) -> TimedTokenizer:
    return TimedTokenizer(clock)


def encode(fallback: LocalFallback, tokenizer: ByteTokenizer, text: str) -> Finished[TokenIds] | Declined:
    return fallback.encode(tokenizer, text, num_bytes=len(text.encode()), add_special_tokens=False)


def reason(outcome: object) -> str | None:
    return outcome.reason if isinstance(outcome, Declined) else None


async def test_a_short_text_is_encoded_in_place(clock: Clock, tokenizer: TimedTokenizer) -> None:
    fallback = LocalFallback(now_s=clock)
    finished = encode(fallback, tokenizer, "text")
    assert isinstance(finished, Finished)
    assert finished.value.tolist() == list(b"text")
    assert finished.run_s == pytest.approx(4e-7)


async def test_a_text_that_would_hold_the_loop_too_long_is_declined_untouched(
    clock: Clock, tokenizer: TimedTokenizer
) -> None:
    fallback = LocalFallback(now_s=clock)
    outcome = encode(fallback, tokenizer, WORDS * 1000)
    assert reason(outcome) == "too_slow"
    assert clock.now_s == 0
    assert fallback.statistics().num_declined_too_slow == 1


async def test_only_one_text_is_encoded_before_the_loop_has_turned(clock: Clock, tokenizer: TimedTokenizer) -> None:
    fallback = LocalFallback(now_s=clock)
    outcomes = [encode(fallback, tokenizer, "text") for _ in range(3)]
    await asyncio.sleep(0)
    outcomes.append(encode(fallback, tokenizer, "text"))
    assert [reason(outcome) for outcome in outcomes] == [None, "busy", "busy", None]
    assert fallback.statistics().num_declined_busy == 2


async def test_fifty_callers_at_once_hold_the_loop_for_one_text_a_turn(clock: Clock, tokenizer: TimedTokenizer) -> None:
    fallback = LocalFallback(now_s=clock)
    turns: dict[int, int] = {}
    turn = 0

    async def call() -> None:
        while reason(encode(fallback, tokenizer, "text")) == "busy":
            await asyncio.sleep(0)
        turns[turn] = turns.get(turn, 0) + 1

    async def count_turns() -> None:
        nonlocal turn
        while len(turns) < 50:
            turn += 1
            await asyncio.sleep(0)

    await asyncio.gather(count_turns(), *[call() for _ in range(50)])
    assert max(turns.values()) == 1


async def test_a_text_without_words_counts_as_slower_than_one_with_words(
    clock: Clock, tokenizer: TimedTokenizer
) -> None:
    fallback = LocalFallback(now_s=clock)
    assert reason(encode(fallback, tokenizer, "a" * 400 + " " + "b" * 20)) is None
    await asyncio.sleep(0)
    assert reason(encode(fallback, tokenizer, "a" * 1000)) == "too_slow"
    assert reason(encode(fallback, tokenizer, " " * 1000)) == "too_slow"


async def test_measurements_from_elsewhere_make_longer_texts_fit(clock: Clock, tokenizer: TimedTokenizer) -> None:
    fallback = LocalFallback(now_s=clock)
    text = WORDS * 100
    assert reason(encode(fallback, tokenizer, text)) == "too_slow"
    for _ in range(100):
        fallback.observe(tokenizer, num_bytes=10_000, elapsed_s=0.0005)
    assert reason(encode(fallback, tokenizer, text)) is None


async def test_a_text_that_took_too_long_is_counted_and_makes_the_guard_careful_at_once(
    clock: Clock, tokenizer: TimedTokenizer
) -> None:
    fallback = LocalFallback(now_s=clock)
    tokenizer.s_per_byte = 1e-4
    text = (WORDS * 20)[:400]
    assert reason(encode(fallback, tokenizer, text)) is None
    await asyncio.sleep(0)
    assert reason(encode(fallback, tokenizer, text)) == "too_slow"
    statistics = fallback.statistics()
    assert (statistics.num_overruns, statistics.max_run_s) == (1, pytest.approx(0.04))


async def test_a_failing_text_gives_its_permit_back(clock: Clock, tokenizer: TimedTokenizer) -> None:
    fallback = LocalFallback(now_s=clock)
    with pytest.raises(RuntimeError, match="boom"):
        encode(fallback, tokenizer, "crash")
    await asyncio.sleep(0)
    assert reason(encode(fallback, tokenizer, "text")) is None


async def test_a_budget_of_nothing_switches_it_off(clock: Clock, tokenizer: TimedTokenizer) -> None:
    fallback = LocalFallback(LocalFallbackSettings(budget_s=0), now_s=clock)
    assert reason(encode(fallback, tokenizer, "")) == "off"


@pytest.mark.parametrize(("name", "value"), [("budget_s", -1), ("safety_factor", 0.5), ("max_per_turn", 0)])
def test_a_setting_out_of_range_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(SettingsError, match=name) as failure:
        LocalFallbackSettings(**{name: value})  # type: ignore[arg-type]
    assert failure.value.param == name


@given(st.floats(0, 1), st.floats(1e-6, 1), st.floats(1, 10))
def test_nothing_beyond_the_budget_is_ever_allowed(estimated_s: float, budget_s: float, factor: float) -> None:
    guard = LocalGuard(LocalFallbackSettings(budget_s=budget_s, safety_factor=factor))
    assert (guard.decide(estimated_s) is None) == (estimated_s * factor <= budget_s)


@given(st.lists(st.floats(1e-9, 1e-3), min_size=1, max_size=30))
def test_the_estimate_stays_between_what_was_measured_and_assumed(rates: list[float]) -> None:
    speed = SpeedEstimate(s_per_byte=1e-6)
    for rate in rates:
        speed.observe(num_bytes=1000, elapsed_s=rate * 1000)
    estimate_s = speed.estimate_s(num_bytes=1, is_wordy=True)
    assert min(1e-6, *rates) * 0.999 <= estimate_s <= max(1e-6, *rates) * 1.001


@given(st.lists(st.sampled_from(["word", "die Katze", "if x:", "12"]), min_size=1, max_size=400))
def test_text_of_words_is_wordy(words: list[str]) -> None:
    assert is_wordy(" ".join(words))


@pytest.mark.parametrize("unit", ["a", " ", "\n", "語", "<|im_end|>", "7"])
def test_long_text_without_words_is_not_wordy(unit: str) -> None:
    assert not is_wordy("some words first " * 50 + unit * 2000)
