import pytest

from headrace.errors import InvalidRequestError
from headrace.gateway.admission.priority import PriorityClass, class_of


@pytest.mark.parametrize(
    ("asked", "allowed", "num_tokens", "expected"),
    [
        (None, "interactive", 10, "interactive"),
        (None, "normal", 10, "normal"),
        (b"batch", "interactive", 10, "batch"),
        (b" Normal ", "interactive", 10, "normal"),
        (b"interactive", "batch", 10, "batch"),
        (b"interactive", "interactive", 1001, "batch"),
        (None, "interactive", 1000, "interactive"),
    ],
)
def test_the_lowest_of_header_key_and_length_counts(
    asked: bytes | None, allowed: PriorityClass, num_tokens: int, expected: PriorityClass
) -> None:
    assert class_of(asked=asked, allowed=allowed, num_prompt_tokens=num_tokens, long_prompt_tokens=1000) == expected


def test_an_unknown_class_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        class_of(asked=b"urgent", allowed="normal", num_prompt_tokens=1, long_prompt_tokens=None)

    assert caught.value.param == "x-headrace-priority"
    assert "'urgent'" in caught.value.message
