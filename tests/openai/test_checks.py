"""Rules between fields, and the forms of a prompt."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import InvalidRequestError, UnsupportedError
from headrace.openai.checks import check_messages, check_stream_options, prompt_list, wants_generation_prompt
from headrace.openai.schema.chat import ChatCompletionRequest
from headrace.openai.schema.generation import StreamOptions

token_ids = st.lists(st.integers(min_value=0, max_value=2**32 - 1), min_size=1, max_size=5)


def test_a_string_is_one_prompt() -> None:
    assert prompt_list("hello", max_prompts=1) == ["hello"]


@given(token_ids)
def test_token_ids_are_one_prompt(ids: list[int]) -> None:
    assert prompt_list(ids, max_prompts=1) == [ids]


@given(st.lists(st.text(), min_size=1, max_size=5) | st.lists(token_ids, min_size=1, max_size=5))
def test_a_list_of_strings_or_of_lists_is_one_prompt_each(prompts: list[str] | list[list[int]]) -> None:
    assert prompt_list(prompts, max_prompts=5) == prompts


@pytest.mark.parametrize(
    ("prompt", "param", "words"),
    [
        ([], "prompt", "empty"),
        ([[]], "prompt[0]", "empty"),
        ([[1], []], "prompt[1]", "empty"),
        (["a", 1], "prompt", "mixture"),
        (["a", [1]], "prompt", "mixture"),
        ([[1], 1], "prompt", "mixture"),
        (["a"] * 4, "prompt", "4 prompts, more than 3"),
    ],
)
def test_prompts_that_are_refused(prompt: list[str | int | list[int]], param: str, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words) as caught:
        prompt_list(prompt, max_prompts=3)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("add", "continues", "wanted"),
    [
        (None, None, True),
        (None, False, True),
        (None, True, False),
        (True, None, True),
        (False, None, False),
        (False, True, False),
        (True, False, True),
    ],
)
def test_the_assistants_turn_is_opened_unless_a_message_is_continued(
    add: bool | None, continues: bool | None, wanted: bool
) -> None:
    assert wants_generation_prompt(add_generation_prompt=add, continue_final_message=continues) is wanted


def test_opening_a_turn_and_continuing_one_exclude_each_other() -> None:
    with pytest.raises(InvalidRequestError, match="exclude each other"):
        wants_generation_prompt(add_generation_prompt=True, continue_final_message=True)


def test_stream_options_need_a_stream() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_stream_options(ChatCompletionRequest(stream_options=StreamOptions()))
    assert caught.value.param == "stream_options"


def test_continuous_usage_is_refused_by_name() -> None:
    request = ChatCompletionRequest(stream=True, stream_options=StreamOptions(continuous_usage_stats=True))
    with pytest.raises(UnsupportedError) as caught:
        check_stream_options(request)
    assert caught.value.param == "stream_options.continuous_usage_stats"


def test_a_chat_needs_a_message() -> None:
    with pytest.raises(InvalidRequestError, match="at least one"):
        check_messages([])


def test_a_message_field_that_is_not_built_is_refused_by_name() -> None:
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "audio": {"id": "a"}, "function_call": None}]
    with pytest.raises(UnsupportedError) as caught:
        check_messages(messages)
    assert caught.value.param == "messages[1].audio"
