import pytest

from headrace.errors import ContextLengthError, OverloadedError
from headrace.gateway.admission.slots import RequestSlots
from headrace.openai.context_length import check_context_length


@pytest.mark.parametrize(
    ("limit", "prompt", "asked"),
    [(None, 10**9, 5), (100, None, 10**9), (100, 50, 50), (100, 100, None), (100, 99, 1), (100, 100, 0)],
)
def test_what_may_fit_passes(limit: int | None, prompt: int | None, asked: int | None) -> None:
    check_context_length(max_model_len=limit, num_prompt_tokens=prompt, num_tokens_asked=asked, param="messages")


@pytest.mark.parametrize(
    ("prompt", "asked", "words"),
    [
        (101, None, "your messages resulted in 101 tokens"),
        (60, 41, "you requested 101 tokens (60 in the messages, 41 in the completion)"),
    ],
)
def test_what_cannot_fit_is_refused_with_both_numbers(prompt: int, asked: int | None, words: str) -> None:
    with pytest.raises(ContextLengthError) as caught:
        check_context_length(max_model_len=100, num_prompt_tokens=prompt, num_tokens_asked=asked, param="messages")

    assert "maximum context length is 100 tokens" in caught.value.message
    assert words in caught.value.message
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")


def test_slots_refuse_beyond_their_number_and_come_back() -> None:
    slots = RequestSlots(num_slots=1)
    with slots, pytest.raises(OverloadedError) as caught, slots:
        pass

    assert caught.value.retry_after_s == 1.0
    assert slots.num_taken == 0
