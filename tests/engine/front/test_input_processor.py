"""What of a request is refused before the core hears of it, and what the core is told."""

import numpy as np
import pytest

from headrace.engine import SamplingParams
from headrace.engine.front.input_processor import InputProcessor
from headrace.errors import ContextLengthError, HeadraceError, InvalidRequestError, UnsupportedError
from headrace.testing.fake_core import fake_engine_config
from headrace.tokenization import TokenizationService


@pytest.fixture
def inputs(tokenization: TokenizationService) -> InputProcessor:
    return InputProcessor(fake_engine_config(max_model_len=10), tokenization=tokenization)


@pytest.mark.parametrize(
    "prompt", ["abc", [97, 98, 99], {"prompt_token_ids": [97, 98, 99]}, np.array([97, 98, 99], dtype=np.uint32)]
)
async def test_a_prompt_has_the_same_ids_in_every_form(inputs: InputProcessor, prompt: object) -> None:
    prepared = await inputs.prepare(prompt)
    assert prepared.token_ids.tolist() == [97, 98, 99]
    assert prepared.token_ids.dtype == np.uint32


async def test_ids_given_beside_a_text_are_used_and_the_text_repeated(inputs: InputProcessor) -> None:
    prepared = await inputs.prepare("text", prompt_token_ids=[1, 2])
    assert (prepared.text, prepared.token_ids.tolist()) == ("text", [1, 2])


@pytest.mark.parametrize(
    ("prompt", "error", "words"),
    [
        ("", InvalidRequestError, "empty"),
        ([], InvalidRequestError, "empty"),
        (None, InvalidRequestError, "empty"),
        ([1, 259], InvalidRequestError, "token id 259 at position 1"),
        ([-1], InvalidRequestError, "token id -1 at position 0"),
        ([1, 2**70], InvalidRequestError, "token id 1180591620717411303424 at position 1"),
        (np.array([1, -5]), InvalidRequestError, "token id -5 at position 1"),
        (np.array([1.5]), InvalidRequestError, "whole numbers"),
        (b"abcd", InvalidRequestError, "whole numbers"),
        ([1.5], InvalidRequestError, "whole numbers"),
        ([[1], [2]], InvalidRequestError, "whole numbers"),
        ([[1], [2, 3]], InvalidRequestError, "whole numbers"),
        (["a"], InvalidRequestError, "whole numbers"),
        ({}, InvalidRequestError, "prompt or prompt_token_ids"),
        ({"prompt_token_ids": [1], "multi_modal_data": {}}, UnsupportedError, "multi_modal_data"),
        ("x" * 11, ContextLengthError, r"maximum context length is 10 tokens\. However, your prompt has 11 tokens"),
        ([1] * 10, ContextLengthError, "leaves none for an answer"),
        (5, InvalidRequestError, "whole numbers"),
        ({"prompt": 5}, InvalidRequestError, "whole numbers"),
        ({"prompt": {"prompt": "x"}}, InvalidRequestError, "whole numbers"),
        ({1, 2}, InvalidRequestError, "whole numbers"),
        (iter([1, 2]), InvalidRequestError, "whole numbers"),
    ],
)
async def test_a_prompt_that_cannot_be_answered_is_refused(
    inputs: InputProcessor, prompt: object, error: type[HeadraceError], words: str
) -> None:
    with pytest.raises(error, match=words):
        await inputs.prepare(prompt)


@pytest.mark.parametrize(("asked", "told"), [(None, 7), (3, 3), (50, 7)])
async def test_max_tokens_is_cut_to_what_the_context_leaves(
    inputs: InputProcessor, asked: int | None, told: int
) -> None:
    prepared = await inputs.prepare("abc")
    request = inputs.core_request("r#0", prepared, SamplingParams(max_tokens=asked), arrival_time=0.0, priority=0)
    assert request.max_tokens == told
    assert np.frombuffer(request.prompt, dtype=np.uint32).tolist() == [97, 98, 99]


@pytest.mark.parametrize(("ignore_eos", "told"), [(False, {5, 258}), (True, {5})])
async def test_the_core_is_told_every_id_that_ends_the_answer(
    inputs: InputProcessor, ignore_eos: bool, told: set[int]
) -> None:
    params = SamplingParams(stop_token_ids=[5], ignore_eos=ignore_eos)
    request = inputs.core_request("r#0", await inputs.prepare("abc"), params, arrival_time=0.0, priority=0)
    assert set(request.stop_token_ids) == told


@pytest.mark.parametrize("request_id", ["", "x" * 257, 5])
def test_a_request_id_must_be_a_short_string(inputs: InputProcessor, request_id: object) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        inputs.check(request_id, SamplingParams(), priority=0)
    assert caught.value.param == "request_id"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("arrival_time", "now"),
        ("arrival_time", True),
        ("arrival_time", float("nan")),
        ("priority", True),
        ("lora", {"lora_name": "a"}),
        ("lora", "a"),
    ],
)
def test_what_is_of_another_kind_is_refused_by_name(inputs: InputProcessor, field: str, value: object) -> None:
    with pytest.raises(InvalidRequestError, match=field):
        inputs.check("r", SamplingParams(), **{"priority": 0, field: value})


@pytest.mark.parametrize("params", [None, {"max_tokens": 3}])
def test_params_that_are_none_are_refused(inputs: InputProcessor, params: object) -> None:
    with pytest.raises(InvalidRequestError, match="SamplingParams or PoolingParams"):
        inputs.check("r", params, priority=0)  # type: ignore[arg-type]


def test_a_priority_is_refused_where_it_would_have_no_effect(inputs: InputProcessor) -> None:
    with pytest.raises(InvalidRequestError, match="scheduling_policy"):
        inputs.check("r", SamplingParams(), priority=1)


def test_a_priority_is_taken_where_the_scheduler_heeds_it(tokenization: TokenizationService) -> None:
    InputProcessor(fake_engine_config(policy="priority"), tokenization=tokenization).check(
        "r", SamplingParams(), priority=1
    )
