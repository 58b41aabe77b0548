"""What the log tells of a request: its id and counts; its prompt only to who asks for it."""

import logging

import numpy as np
import pytest

from headrace.engine.front.input_processor import PreparedPrompt
from headrace.engine.front.request_log import RequestLog

PROMPT = PreparedPrompt(text="a secret of mine", token_ids=np.array([1, 2, 3], dtype=np.uint32))


def test_an_arrival_is_one_line_without_the_prompt(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        RequestLog(is_on=True, max_chars=None).received("r", PROMPT)
    (record,) = caplog.records
    assert (record.message, record.request_id, record.prompt_tokens) == ("received", "r", 3)


def test_the_prompt_is_cut_where_it_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        RequestLog(is_on=True, max_chars=8).received("r", PROMPT)
    assert caplog.messages == ["received", "prompt of r: 'a secret'"]


def test_nothing_is_logged_when_it_is_off(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        RequestLog(is_on=False, max_chars=None).received("r", PROMPT)
    assert caplog.records == []
