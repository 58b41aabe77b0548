"""OpenAI's error object."""

import msgspec
import pytest

from headrace.errors import ContextLengthError, EngineDeadError, HeadraceError, ModelNotFoundError
from headrace.openai.errors import encode_error, error_body


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            ModelNotFoundError("no such model", param="model"),
            {"message": "no such model", "type": "not_found_error", "param": "model", "code": "model_not_found"},
        ),
        (
            ContextLengthError("too long"),
            {"message": "too long", "type": "invalid_request_error", "param": None, "code": "context_length_exceeded"},
        ),
        (
            EngineDeadError('gone: "why"\n'),
            {"message": 'gone: "why"\n', "type": "engine_error", "param": None, "code": "engine_dead"},
        ),
    ],
)
def test_an_error_becomes_openais_error_object(error: HeadraceError, expected: dict[str, str | None]) -> None:
    assert msgspec.json.decode(error_body(error)) == {"error": expected}


def test_an_error_body_has_no_newline_so_that_it_is_one_event_line() -> None:
    assert b"\n" not in error_body(EngineDeadError("a\nb"))


def test_an_error_without_a_class_has_the_same_form() -> None:
    body = msgspec.json.decode(encode_error(message="m", error_type="t"))
    assert body == {"error": {"message": "m", "type": "t", "param": None, "code": None}}
