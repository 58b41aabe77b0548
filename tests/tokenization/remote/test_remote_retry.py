"""When a request is tried again, and what an answer means."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import (
    HeadraceError,
    InvalidRequestError,
    OverloadedError,
    PayloadTooLargeError,
    UnsupportedError,
    UpstreamConnectError,
    UpstreamProtocolError,
    UpstreamTimeoutError,
)
from headrace.tokenization.remote.errors import EndpointFaultError, error_of, is_transient
from headrace.tokenization.remote.fallback import FallbackReason, RemoteUnavailableError, reason_of
from headrace.tokenization.remote.retry import RetryPolicy, read_retry_after
from headrace.tokenization.remote.transport import RemoteAnswer, RemoteClosedError

NOW_UNIX_S = 1_445_412_480.0  # Wed, 21 Oct 2015 07:28:00 GMT


def policy(*, random: float = 1.0, max_retries: int = 3) -> RetryPolicy:
    return RetryPolicy(max_retries=max_retries, base_s=0.1, max_s=0.5, retry_after_max_s=2.0, random=lambda: random)


def test_the_bound_of_the_pause_doubles_to_its_limit() -> None:
    pauses = [
        policy(max_retries=9).pause_s(num_failures=number, retry_after_s=None, time_left_s=60)
        for number in (1, 2, 3, 4, 9)
    ]
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.5, 0.5])


@given(st.floats(0, 1, exclude_max=True), st.integers(1, 5000), st.floats(0, 100), st.none() | st.floats(0, 1e9))
def test_a_pause_is_never_longer_than_its_caps_or_the_time_left(
    random: float, num_failures: int, time_left_s: float, retry_after_s: float | None
) -> None:
    pause_s = policy(random=random, max_retries=10_000).pause_s(
        num_failures=num_failures, retry_after_s=retry_after_s, time_left_s=time_left_s
    )
    assert pause_s is None or (0 <= pause_s < time_left_s and pause_s <= (0.5 if retry_after_s is None else 2.0))


def test_jitter_is_full() -> None:
    assert policy(random=0.0).pause_s(num_failures=3, retry_after_s=None, time_left_s=1) == 0.0


@pytest.mark.parametrize(("asked_s", "expected_s"), [(0.0, 0.1), (1.5, 1.5), (3600.0, 2.0)])
def test_retry_after_takes_the_place_of_the_pause_up_to_a_cap(asked_s: float, expected_s: float) -> None:
    """AIBrix sleeps any Retry-After, and its own pause on top."""
    pause_s = policy().pause_s(num_failures=1, retry_after_s=asked_s, time_left_s=60)
    assert pause_s == pytest.approx(expected_s)


def test_the_number_of_retries_is_bounded() -> None:
    assert policy().pause_s(num_failures=3, retry_after_s=None, time_left_s=60) is not None
    assert policy().pause_s(num_failures=4, retry_after_s=None, time_left_s=60) is None
    assert policy(max_retries=0).pause_before_another_s(num_failures=1, time_left_s=60) is None


@pytest.mark.parametrize(
    ("value", "expected_s"),
    [
        (None, None),
        ("3", 3.0),
        (" 3 ", 3.0),
        ("99999999999999999999", 999_999_999.0),
        ("Wed, 21 Oct 2015 07:28:30 GMT", 30.0),
        ("Wed, 21 Oct 2015 07:20:00 GMT", 0.0),
        ("soon", None),
        ("-3", None),
        ("1.5", None),
        ("٣", None),
    ],
)
def test_retry_after_is_read_as_seconds_or_date(value: str | None, expected_s: float | None) -> None:
    assert read_retry_after(value, now_unix_s=NOW_UNIX_S) == expected_s


@given(st.text())
def test_any_retry_after_gives_a_sane_number_or_none(value: str) -> None:
    seconds = read_retry_after(value, now_unix_s=NOW_UNIX_S)
    assert seconds is None or (seconds >= 0 and math.isfinite(seconds))


VLLM_BODY = b'{"error":{"message":"no such thing","type":"BadRequestError","param":"tools","code":400}}'


@pytest.mark.parametrize(
    ("status", "expected", "transient", "reason"),
    [
        (301, UpstreamProtocolError, True, "bad_answer"),
        (400, InvalidRequestError, False, None),
        (401, EndpointFaultError, False, "endpoint_fault"),
        (403, EndpointFaultError, False, "endpoint_fault"),
        (404, EndpointFaultError, False, "endpoint_fault"),
        (408, EndpointFaultError, True, "endpoint_fault"),
        (413, PayloadTooLargeError, False, "too_large"),
        (418, EndpointFaultError, False, "endpoint_fault"),
        (422, InvalidRequestError, False, None),
        (429, OverloadedError, True, "overloaded"),
        (500, EndpointFaultError, True, "endpoint_fault"),
        (501, EndpointFaultError, False, "endpoint_fault"),
        (502, EndpointFaultError, True, "endpoint_fault"),
        (503, OverloadedError, True, "overloaded"),
        (504, EndpointFaultError, True, "endpoint_fault"),
    ],
)
def test_each_status_has_its_meaning(
    status: int, expected: type[HeadraceError], transient: bool, reason: FallbackReason | None
) -> None:
    error = error_of(
        RemoteAnswer(status=status, body=VLLM_BODY), url="http://e/tokenize", is_chat=False, retry_after_s=None
    )
    assert type(error) is expected
    assert is_transient(error) is transient
    assert reason_of(error) == reason


@pytest.mark.parametrize(
    ("body", "message", "param"),
    [
        (VLLM_BODY, "no such thing", "tools"),
        (b'{"object":"error","message":"flat","param":"x","code":400}', "flat", "x"),
        (b'{"error":"bare"}', "bare", None),
        (b'{"detail":"from FastAPI"}', "from FastAPI", None),
        (b'{"message":"two\\n lines"}', "two lines", None),
        (b"{}", "(no message)", None),
        (b"<html>\xff", "(no readable message)", None),
        (b'{"error":[1]}', "(no readable message)", None),
    ],
)
def test_the_endpoints_own_words_reach_the_client(body: bytes, message: str, param: str | None) -> None:
    error = error_of(RemoteAnswer(status=400, body=body), url="http://e", is_chat=False, retry_after_s=None)
    assert (error.message, error.param) == (message, param)


def test_a_long_message_is_cut() -> None:
    body = b'{"message":"' + b"x" * 100_000 + b'"}'
    error = error_of(RemoteAnswer(status=400, body=body), url="http://e", is_chat=False, retry_after_s=None)
    assert len(error.message) < 400


@given(st.integers(201, 599), st.binary(), st.booleans())
def test_any_answer_gives_our_error(status: int, body: bytes, is_chat: bool) -> None:
    error = error_of(RemoteAnswer(status=status, body=body), url="http://e", is_chat=is_chat, retry_after_s=None)
    assert isinstance(error, HeadraceError)


def test_a_server_too_old_for_chats_is_not_the_clients_fault() -> None:
    body = b"{\"object\":\"error\",\"message\":\"[{'loc': ('body', 'prompt'), 'msg': 'Field required'}]\",\"code\":400}"
    for is_chat, expected in ((True, UnsupportedError), (False, InvalidRequestError)):
        error = error_of(RemoteAnswer(status=400, body=body), url="http://e", is_chat=is_chat, retry_after_s=None)
        assert type(error) is expected


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (UpstreamConnectError("x"), "unreachable"),
        (UpstreamTimeoutError("x"), "timeout"),
        (UnsupportedError("x"), "unsupported"),
        (RemoteUnavailableError("x", reason="pool_full"), "pool_full"),
        (RemoteClosedError("x"), None),
    ],
)
def test_each_failure_has_its_reason_to_fall_back(error: HeadraceError, reason: FallbackReason | None) -> None:
    assert reason_of(error) == reason


def test_a_deadline_that_has_passed_is_not_tried_again() -> None:
    assert not is_transient(UpstreamTimeoutError("late"))
