"""The small parts that need no server: settings, request ids, sampling, counting."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.aio.stop import StopRequest
from headrace.engine.outputs import CompletionOutput, RequestMetrics, RequestOutput, RequestOutputKind
from headrace.engine.sampling_params import SamplingParams
from headrace.errors import InvalidRequestError, OverloadedError, SettingsError
from headrace.openai.schema.chat import ChatCompletionRequest
from headrace.server.middleware import clean_request_id
from headrace.server.sampling import sampling_params
from headrace.server.serving import LiveRequests
from headrace.server.settings import ServerSettings
from headrace.server.tally import Tally


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("port", -1),
        ("port", 65536),
        ("max_body_bytes", 0),
        ("max_concurrent_requests", 0),
        ("max_prompts", 0),
        ("max_inputs", 0),
        ("body_timeout_s", 0),
        ("write_timeout_s", -1.0),
        ("keep_alive_s", 0),
        ("health_interval_s", 0),
        ("drain_timeout_s", -1),
        ("api_key", ("",)),
        ("api_key", ("good", " padded")),
        ("api_key", ("schlüssel",)),
    ],
)
def test_a_setting_that_cannot_work_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(SettingsError) as caught:
        ServerSettings(**{field: value})
    assert caught.value.param == field


@given(st.text())
def test_a_request_id_is_safe_in_a_header_and_a_log_line_whatever_comes(given_id: str) -> None:
    cleaned = clean_request_id(given_id)
    assert len(cleaned) <= 128
    assert cleaned.isascii()
    assert not set(cleaned) & set("\r\n\0 ;,\"'<>")
    assert clean_request_id(cleaned) == cleaned


def test_fields_that_are_not_set_keep_the_models_defaults() -> None:
    defaults = SamplingParams(temperature=0.6, top_p=0.9, repetition_penalty=1.1, max_tokens=None)
    params = sampling_params(ChatCompletionRequest(top_p=0.5), max_tokens=7, defaults=defaults)
    assert (params.temperature, params.top_p, params.repetition_penalty) == (0.6, 0.5, 1.1)
    assert (params.max_tokens, params.output_kind) == (7, RequestOutputKind.FINAL_ONLY)


def test_a_stream_asks_for_deltas() -> None:
    defaults = SamplingParams(max_tokens=None)
    params = sampling_params(ChatCompletionRequest(stream=True), max_tokens=None, defaults=defaults)
    assert (params.output_kind, params.max_tokens) == (RequestOutputKind.DELTA, None)


def test_a_request_without_a_length_gets_the_models_own() -> None:
    defaults = SamplingParams(max_tokens=77)
    assert sampling_params(ChatCompletionRequest(), max_tokens=None, defaults=defaults).max_tokens == 77


def test_a_value_out_of_range_is_refused() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        sampling_params(ChatCompletionRequest(min_p=2), max_tokens=None, defaults=SamplingParams())
    assert caught.value.param == "min_p"


def test_no_more_requests_than_the_limit_are_admitted_and_places_come_back() -> None:
    live = LiveRequests(max_requests=1)
    for _ in range(3):
        with live.admit():
            with pytest.raises(OverloadedError, match="which is the limit") as caught, live.admit():
                pass
            assert caught.value.retry_after_s == 1.0
    assert repr(live) == "LiveRequests(num_requests=0, num_generations=0)"


async def test_the_second_stop_request_is_another_event() -> None:
    stop = StopRequest()
    assert isinstance(stop.requested, asyncio.Event)
    stop.request()
    assert (stop.requested.is_set(), stop.repeated.is_set()) == (True, False)
    stop.request()
    assert stop.repeated.is_set()


def output(num_tokens: int, *, reason: Any = None) -> RequestOutput:
    return RequestOutput(
        "r",
        None,
        prompt_token_ids=[1] * 10,
        outputs=[CompletionOutput(0, "", [0] * num_tokens, finish_reason=reason)],
        finished=reason is not None,
        num_cached_tokens=4,
        metrics=RequestMetrics(arrival_time=100.0),
    )


def test_a_tally_sums_prompts_once_and_deltas_each_time() -> None:
    tally = Tally(num_generations=2)
    tally.add(0, output(1))
    tally.add(1, output(2))
    tally.add(0, output(3, reason="stop"))
    assert not tally.is_complete
    tally.add(1, output(1, reason="length"))
    assert tally.is_complete
    usage = tally.usage()
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (20, 7, 27)
    assert usage.prompt_tokens_details.cached_tokens == 8
