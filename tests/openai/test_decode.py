"""Bodies become typed requests, or errors that name the field."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import InvalidRequestError, UnsupportedError
from headrace.openai import unbuilt
from headrace.openai.decode import RequestDecoder
from headrace.openai.schema.chat import ChatCompletionRequest
from headrace.openai.schema.completions import CompletionRequest

CHAT = RequestDecoder(ChatCompletionRequest, unbuilt=unbuilt.CHAT)
COMPLETIONS = RequestDecoder(CompletionRequest, unbuilt=unbuilt.COMPLETIONS)


def test_fields_arrive_as_they_were_sent() -> None:
    request = CHAT.decode(b'{"messages":[{"role":"user","content":"x","extra":{"kept":1}}],"temperature":1,"stop":"a"}')
    assert request.messages == [{"role": "user", "content": "x", "extra": {"kept": 1}}]
    assert (request.temperature, request.stop, request.max_tokens) == (1.0, "a", None)


def test_unknown_fields_are_skipped() -> None:
    assert COMPLETIONS.decode(b'{"prompt":"x","user":"u","metadata":{"a":"b"},"what_is_this":[1]}').prompt == "x"


def test_a_byte_order_mark_is_passed_over() -> None:
    """Windows' editors write it, and what Python's servers read bodies with takes it."""
    assert COMPLETIONS.decode(b'\xef\xbb\xbf{"prompt":"x"}').prompt == "x"


def test_null_is_the_default() -> None:
    request = CHAT.decode(b'{"stream":null,"temperature":null,"stop":null,"tools":null,"n":null,"stream_options":null}')
    assert not request.stream
    assert request.temperature is None


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"prompt":5}', "prompt"),
        (b'{"prompt":[1,-2]}', "prompt[1]"),
        (b'{"prompt":[1,4294967296]}', "prompt[1]"),
        (b'{"prompt":[[1],[2,true]]}', "prompt[1][1]"),
        (b'{"prompt":[1.5]}', "prompt[0]"),
        (b"{}", "prompt"),
        (b'{"prompt":"x","temperature":"hot"}', "temperature"),
        (b'{"prompt":"x","temperature":true}', "temperature"),
        (b'{"prompt":"x","temperature":1e999}', "temperature"),
        (b'{"prompt":"x","max_tokens":-1}', "max_tokens"),
        (b'{"prompt":"x","max_tokens":1.5}', "max_tokens"),
        (b'{"prompt":"x","stop":[1]}', "stop[0]"),
        (b'{"prompt":"x","stream":"yes"}', "stream"),
        (b'{"prompt":"x","stream_options":{"include_usage":1}}', "stream_options.include_usage"),
        (b'{"prompt":"x","seed":99999999999999999999}', "seed"),
        (b'{"prompt":"x","stop_token_ids":[null]}', "stop_token_ids[0]"),
        (b"[]", None),
        (b"null", None),
    ],
)
def test_a_wrong_type_names_the_field(body: bytes, param: str | None) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        COMPLETIONS.decode(body)
    assert caught.value.param == param
    assert caught.value.message.startswith(f"{param}: " if param else "the body: ")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b'{"prompt":"x"}}', "not valid JSON"),
        (b'{"prompt":NaN}', "not valid JSON"),
        (b'{"prompt":"\xff"}', "not valid UTF-8"),
        (b'{"prompt":"\\ud800"}', "not valid JSON"),
        (b'{"prompt":"x","deep":' + b"[" * 200_000 + b"]" * 200_000 + b"}", "nested too deeply"),
        (b'{"prompt":"x","suffix":' + b"[" * 200_000 + b"]" * 200_000 + b"}", "nested too deeply"),
    ],
)
def test_what_is_not_json_is_said_to_be_not(body: bytes, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        COMPLETIONS.decode(body)


UNBUILT_VALUES: dict[str, bytes] = {
    "best_of": b"2",
    "tools": b'[{"type":"function"}]',
    "tool_choice": b'"required"',
    "modalities": b'["text","audio"]',
    "echo": b"true",
    "suffix": b'"end"',
    "detokenize": b"false",
}


@pytest.mark.parametrize("name", sorted(unbuilt.CHAT))
def test_a_chat_field_that_is_not_built_is_refused_by_name(name: str) -> None:
    value = UNBUILT_VALUES.get(name, b'{"some":"thing"}')
    with pytest.raises(UnsupportedError, match=name) as caught:
        CHAT.decode(b'{"messages":[],"%s":%s}' % (name.encode(), value))
    assert caught.value.param == name


@pytest.mark.parametrize("name", sorted(unbuilt.COMPLETIONS))
def test_a_completions_field_that_is_not_built_is_refused_by_name(name: str) -> None:
    value = UNBUILT_VALUES.get(name, b'{"some":"thing"}')
    with pytest.raises(UnsupportedError, match=name) as caught:
        COMPLETIONS.decode(b'{"prompt":"x","%s":%s}' % (name.encode(), value))
    assert caught.value.param == name


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in unbuilt.CHAT.items() for value in (None, *values)]
)
def test_a_field_that_asks_for_nothing_passes(name: str, value: object) -> None:
    body = msgspec.json.encode({"messages": [], name: value})
    assert CHAT.decode(body).messages == []


def test_true_is_not_one() -> None:
    with pytest.raises(UnsupportedError, match="best_of=true"):
        CHAT.decode(b'{"messages":[],"best_of":true}')
    assert CHAT.decode(b'{"messages":[],"best_of":1.0}').messages == []


def test_a_long_refused_value_is_shown_short() -> None:
    with pytest.raises(UnsupportedError) as caught:
        CHAT.decode(b'{"messages":[],"documents":["' + b"x" * 10_000 + b'"]}')
    assert len(caught.value.message) < 200


@given(
    st.binary(max_size=80)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["prompt", "stop", "n", "max_tokens", "stream_options"]), inner, max_size=4
            )
        ),
        max_leaves=8,
    ).map(lambda value: msgspec.json.encode(value, enc_hook=str) if not isinstance(value, int) else str(value).encode())
)
def test_any_body_is_a_request_or_our_error(body: bytes) -> None:
    try:
        request = COMPLETIONS.decode(body)
    except InvalidRequestError:
        return
    assert isinstance(request, CompletionRequest)
