"""Which sampling parameters are taken, and how a refusal reads."""

import msgspec
import numpy as np
import pytest

from headrace.engine import SamplingParams, StructuredOutputsParams
from headrace.engine.wire.channel import encode_frame
from headrace.engine.wire.messages import AddRequest
from headrace.errors import InvalidRequestError, UnsupportedError


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("repetition_penalty", 0.0),
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", float("nan")),
        ("temperature", "hot"),
        ("temperature", True),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_k", -2),
        ("top_k", 1.5),
        ("min_p", 1.1),
        ("n", 0),
        ("seed", -2),
        ("seed", 2**63),
        ("max_tokens", 0),
        ("min_tokens", -1),
        ("min_tokens", 17),
        ("stop", [""]),
        ("stop", [1]),
        ("stop", 5),
        ("stop", ["ab"] * 1025),
        ("stop", "a" * 16_385),
        ("stop_token_ids", [7] * 1025),
        ("allowed_token_ids", [7] * (2**19 + 1)),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", 3),
        ("max_tokens", 2**64),
        ("presence_penalty", 10**400),
        ("ignore_eos", 1),
        ("detokenize", None),
        ("skip_special_tokens", "no"),
        ("include_stop_str_in_output", 0),
        ("spaces_between_special_tokens", None),
        ("skip_reading_prefix_cache", 1),
        ("output_kind", 2),
        ("output_kind", "DELTA"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**{field: value})
    assert caught.value.param == field
    assert field in caught.value.message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("flat_logprobs", True),
        ("extra_args", {"a": 1}),
        ("thinking_token_budget", 0),
        ("repetition_detection", {}),
        ("watermarking", {}),
        ("watermarking", False),
        ("flat_logprobs", None),
    ],
)
def test_a_field_that_is_not_built_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(UnsupportedError) as caught:
        SamplingParams(**{field: value}).refuse_unbuilt()
    assert caught.value.param == field


def test_every_field_that_is_built_passes_the_refusal() -> None:
    SamplingParams(
        presence_penalty=1.0, top_k=5, top_p=0.5, min_p=0.1, seed=3, stop="x", min_tokens=2, ignore_eos=True
    ).refuse_unbuilt()


@pytest.mark.parametrize("field", SamplingParams.__struct_fields__)
@pytest.mark.parametrize(
    "value",
    [None, True, 1, 0.5, 2**70, np.float64(0.5), np.int64(2), "x", "\ud800", b"x", [1], ["\ud800"], {1: np.float64(2)}],
    ids=repr,
)
def test_what_is_taken_reaches_the_core_as_it_is(field: str, value: object) -> None:
    """An engine is shared: a message that its core cannot read would end everybody's requests."""
    try:
        params = SamplingParams(**{field: value})
        params.refuse_unbuilt()
        payload = encode_frame(message_with(params))[4:]
    except InvalidRequestError:
        return
    assert msgspec.msgpack.decode(payload, type=AddRequest).sampling_params == params


@pytest.mark.parametrize("field", StructuredOutputsParams.__struct_fields__)
@pytest.mark.parametrize(
    "value", [None, False, 0, 1, "", "x", "\ud800", b"x", [], ["x"], [1], {}, {"type": 5}], ids=repr
)
def test_what_is_taken_of_structured_outputs_reaches_the_core_as_it_is(field: str, value: object) -> None:
    try:
        params = SamplingParams(structured_outputs=StructuredOutputsParams(**{"regex": "a", field: value}))
        payload = encode_frame(message_with(params))[4:]
    except InvalidRequestError:
        return
    assert msgspec.msgpack.decode(payload, type=AddRequest).sampling_params == params


def message_with(params: SamplingParams) -> AddRequest:
    return AddRequest(
        request_id="r", prompt=b"\0\0\0\0", sampling_params=params, max_tokens=1, stop_token_ids=(), arrival_time=0.0
    )


def test_a_number_of_numpy_is_taken_as_a_plain_one() -> None:
    params = SamplingParams(temperature=np.float64(0.5), logit_bias={3: np.float64(1.5)})
    assert type(params.temperature) is float
    assert params.logit_bias is not None
    assert type(params.logit_bias[3]) is float


def test_greedy_switches_the_other_filters_off() -> None:
    params = SamplingParams(temperature=0, top_p=0.5, top_k=5, min_p=0.5)
    assert (params.top_p, params.top_k, params.min_p, params.is_greedy) == (1.0, 0, 0.0, True)


def test_a_tiny_temperature_is_raised_to_one_that_does_not_overflow() -> None:
    assert SamplingParams(temperature=1e-6).temperature == 0.01


@pytest.mark.parametrize(("stop", "strings"), [(None, ()), ("a", ("a",)), (["a", "b"], ("a", "b")), ([], ())])
def test_stop_strings_are_a_tuple_whatever_was_given(stop: str | list[str] | None, strings: tuple[str, ...]) -> None:
    assert SamplingParams(stop=stop).stop_strings == strings


def test_stop_strings_need_text() -> None:
    with pytest.raises(InvalidRequestError, match="detokenize"):
        SamplingParams(stop="x", detokenize=False)


def test_the_other_spellings_of_off_are_understood() -> None:
    params = SamplingParams(top_k=-1, seed=-1)
    assert (params.top_k, params.seed) == (0, None)


def test_parameters_cross_the_channel_unchanged() -> None:
    params = SamplingParams(temperature=0.5, stop=["a"], stop_token_ids=[3], seed=7, max_tokens=None)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params


def test_more_biases_than_can_be_looked_through_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="logit_bias holds 70000 ids, more than 65536") as caught:
        SamplingParams(logit_bias=dict.fromkeys(range(70_000), 1.0))
    assert caught.value.param == "logit_bias"
