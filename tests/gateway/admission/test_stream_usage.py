import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.gateway.endpoints.endpoint import ModelCard, ServedModel
from headrace.gateway.http.message import Request
from headrace.gateway.identify import Call, identify
from headrace.gateway.usage.stream_usage import ask_usage, without_usage
from headrace.testing.fake_upstream import DONE, chunk_event, usage_event


def call_of(body: bytes, *, path: bytes = b"/v1/chat/completions") -> Call:
    request = Request(method="POST", target=path, headers=[], is_http10=False, keep_alive=True, body=body)
    models = {"m": ServedModel(card=ModelCard(id="m"), raw=b"{}")}
    return identify(request, models=models, request_id=b"1")


def test_a_stream_is_asked_for_its_usage_and_all_else_stays_as_it_came() -> None:
    call = ask_usage(call_of(b'{"model":"m","stream":true,"x":1.50,"stream_options":{"y":[ 1]},"messages":[]}'))

    assert call.hides_usage
    assert call.body == (
        b'{"model":"m","stream":true,"x":1.50,"stream_options":{"y":[ 1],"include_usage":true},"messages":[]}',
    )


def test_also_where_the_model_was_put_in() -> None:
    call = ask_usage(call_of(b'{"stream":true}'))

    assert json.loads(b"".join(call.body)) == {
        "stream": True,
        "model": "m",
        "stream_options": {"include_usage": True},
    }


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m"}',
        b'{"model":"m","stream":false}',
        b'{"model":"m","stream":true,"stream_options":{"include_usage":true}}',
        b'{"model":"m","stream":true,"stream_options":5}',
    ],
)
def test_what_tells_its_usage_anyway_or_cannot_be_read_goes_on_as_it_is(body: bytes) -> None:
    call = call_of(body)

    assert ask_usage(call) is call


def test_the_event_of_the_usage_is_left_out() -> None:
    usage = usage_event(prompt_tokens=1, completion_tokens=2)
    events = chunk_event("a") + usage + DONE

    assert without_usage(events) == chunk_event("a") + DONE
    assert without_usage(usage) == b""
    crlf = b'data: {"choices":[],"usage":{"prompt_tokens":1}}\r\n\r\ndata: [DONE]\r\n\r\n'
    assert without_usage(crlf) == b"data: [DONE]\r\n\r\n"


@pytest.mark.parametrize(
    "event",
    [
        b'data: {"choices":[{"delta":{}}],"usage":{"prompt_tokens":1}}\n\n',
        b'data: {"choices":[],"usage":null}\n\n',
        b'data: {"choices":[{"text":"\\"usage\\""}]}\n\n',
        b'data: "usage" {\n\n',
        b': "usage"\n\n',
    ],
)
def test_events_that_tell_something_else_pass(event: bytes) -> None:
    assert without_usage(event) == event


@given(data=st.binary(max_size=200) | st.text('"usage\n\r:data{}[]', max_size=80).map(str.encode))
def test_bytes_that_are_no_events_pass_unchanged(data: bytes) -> None:
    assert without_usage(data) == data
