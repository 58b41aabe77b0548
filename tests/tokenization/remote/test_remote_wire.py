"""Bodies of remote tokenizers, without a network."""

import contextlib
import json
from collections.abc import Iterable
from types import MappingProxyType
from typing import TypeVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import InvalidRequestError, PayloadTooLargeError, UnsupportedError, UpstreamProtocolError
from headrace.tokenization import ChatPrompt
from headrace.tokenization.remote.wire import (
    RemoteWire,
    SglangWire,
    Steps,
    TokenizeAnswer,
    VllmWire,
    assembling,
    reading_tokens,
)

ResultT = TypeVar("ResultT")

TOOLS = [{"type": "function", "function": {"name": "look"}}]
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


def run(steps: Steps[ResultT]) -> tuple[ResultT, int]:
    """The result of `steps`, and how often others could have run."""
    num_yields = 0
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value, num_yields
        num_yields += 1


def assemble(pieces: Iterable[bytes], *, max_bytes: int) -> bytes:
    return run(assembling(pieces, max_bytes=max_bytes))[0]


def read_tokens(body: bytes) -> TokenizeAnswer:
    return run(reading_tokens(body))[0]


def tokenize_body(wire: RemoteWire, prompt: str | ChatPrompt, *, add_special_tokens: bool = True) -> dict[str, object]:
    pieces = wire.tokenize_body(prompt, model="demo", add_special_tokens=add_special_tokens)
    body = json.loads(assemble(pieces, max_bytes=1 << 24))
    assert isinstance(body, dict)
    return body


def test_vllm_gets_a_text_with_its_flag() -> None:
    assert tokenize_body(VllmWire(), "hé\n", add_special_tokens=False) == {
        "prompt": "hé\n",
        "model": "demo",
        "add_special_tokens": False,
    }


def test_vllm_gets_a_chat_whole() -> None:
    prompt = ChatPrompt(
        messages=[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "well"}],
        tools=TOOLS,
        add_generation_prompt=False,
        continue_final_message=True,
        template_kwargs={"enable_thinking": False},
    )
    assert tokenize_body(VllmWire(), prompt) == {
        "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "well"}],
        "model": "demo",
        "tools": TOOLS,
        "add_generation_prompt": False,
        "continue_final_message": True,
        "chat_template_kwargs": {"enable_thinking": False},
        "add_special_tokens": False,
    }


def test_sglang_gets_a_chat_without_what_it_would_pass_over() -> None:
    prompt = ChatPrompt(messages=[{"role": "user", "content": "hi"}], tools=TOOLS)
    assert tokenize_body(SglangWire(), prompt) == {
        "messages": [{"role": "user", "content": "hi"}],
        "model": "demo",
        "tools": TOOLS,
        "continue_final_message": False,
    }


@pytest.mark.parametrize(
    ("prompt", "add_special_tokens", "param"),
    [
        ("x", False, "add_special_tokens"),
        (ChatPrompt(messages=[{"role": "user", "content": "x"}], add_generation_prompt=False), True, "add_gen"),
        (ChatPrompt(messages=[{"role": "user", "content": "x"}], continue_final_message=True), True, "add_gen"),
    ],
)
def test_what_sglang_would_pass_over_is_refused_by_name(
    prompt: str | ChatPrompt, add_special_tokens: bool, param: str
) -> None:
    with pytest.raises(UnsupportedError) as refused:
        SglangWire().tokenize_body(prompt, model="demo", add_special_tokens=add_special_tokens)
    assert refused.value.param is not None
    assert refused.value.param.startswith(param)


def test_vllm_cannot_skip_special_tokens() -> None:
    with pytest.raises(UnsupportedError) as refused:
        VllmWire().detokenize_body([1], model="demo", skip_special_tokens=True)
    assert refused.value.param == "skip_special_tokens"


@pytest.mark.parametrize("wire", [VllmWire(), SglangWire()])
@pytest.mark.parametrize("num_ids", [0, 1, 8192, 20_000])
def test_ids_of_any_number_are_written_as_one_list(wire: RemoteWire, num_ids: int) -> None:
    ids = np.arange(num_ids, dtype=np.uint32) + np.uint32(2**32 - 20_000)
    pieces = wire.detokenize_body(ids, model="demo", skip_special_tokens=False)
    assert json.loads(assemble(pieces, max_bytes=1 << 24))["tokens"] == ids.tolist()


@given(TEXTS)
def test_any_text_arrives_as_it_is(text: str) -> None:
    assert tokenize_body(VllmWire(), text)["prompt"] == text


def test_a_text_of_many_pieces_arrives_as_it_is() -> None:
    text = 'é"\\\n🌊' * 100_000
    assert tokenize_body(VllmWire(), text)["prompt"] == text


def test_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"U\+D800"):
        tokenize_body(VllmWire(), "x\ud800")


def test_messages_of_other_mappings_are_written() -> None:
    prompt = ChatPrompt(messages=[MappingProxyType({"role": "user", "content": "hi"})])
    assert tokenize_body(VllmWire(), prompt)["messages"] == [{"role": "user", "content": "hi"}]


def test_messages_that_json_cannot_carry_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="object"):
        tokenize_body(VllmWire(), ChatPrompt(messages=[{"role": object()}]))


def test_a_body_over_the_limit_is_refused_before_it_is_whole() -> None:
    seen = []

    def pieces():  # type: ignore[no-untyped-def]
        for number in range(10):
            seen.append(number)
            yield b"x" * 10

    with pytest.raises(PayloadTooLargeError, match="25"):
        assemble(pieces(), max_bytes=25)
    assert seen == [0, 1, 2]


@given(st.lists(st.integers(0, 2**32 - 1), max_size=50), st.sampled_from(["", " ", "\n "]))
def test_ids_are_packed_as_they_came(ids: list[int], space: str) -> None:
    body = json.dumps({"count": len(ids), "max_model_len": 8, "tokens": ids, "token_strs": None}).replace(
        ",", f"{space},{space}"
    )
    answer = read_tokens(body.encode())
    assert answer.token_ids.dtype == np.uint32
    assert answer.token_ids.tolist() == ids
    assert answer.max_model_len == 8


def test_a_long_list_is_read_whole() -> None:
    ids = [number * 7919 % 2**32 for number in range(100_000)]
    body = json.dumps({"tokens": ids, "count": len(ids)}, separators=(",", ":")).encode()
    answer, num_yields = run(reading_tokens(body))
    assert answer.token_ids.tolist() == ids
    assert num_yields > len(body) // 40_000


def test_a_long_body_is_written_in_steps_and_a_short_one_at_once() -> None:
    for num_chars, num_yields in ((1000, 0), (1_000_000, 5)):
        pieces = VllmWire().tokenize_body("x" * num_chars, model="demo", add_special_tokens=True)
        assert run(assembling(pieces, max_bytes=1 << 24))[1] == num_yields


def test_packed_ids_cannot_be_written_to() -> None:
    with pytest.raises(ValueError, match="read-only"):
        read_tokens(b'{"tokens":[1],"count":1}').token_ids[0] = 2


@pytest.mark.parametrize("length", [-1, 0, int(1e30), None])
def test_a_context_that_the_engine_does_not_know_is_none(length: int | None) -> None:
    body = json.dumps({"tokens": [], "count": 0, "max_model_len": length}).encode()
    assert read_tokens(body).max_model_len is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b'{"count":1}',
        b'{"tokens":[1',
        b'{"tokens":[1]}',
        b'{"tokens":[1],"count":2}',
        b'{"tokens":[1.5],"count":1}',
        b'{"tokens":[-1],"count":1}',
        b'{"tokens":[4294967296],"count":1}',
        b'{"tokens":["1"],"count":1}',
        b'{"tokens":[1,],"count":1}',
        b'{"tokens":[[1],[2]],"count":[1,1]}',
        b'{"note":"\\"tokens\\":[1]","count":1}',
        b'{"tokens":[1],"count":1',
        b'\xff{"tokens":[1],"count":1}',
    ],
)
def test_an_answer_that_is_none_is_an_error_of_the_endpoint(body: bytes) -> None:
    with pytest.raises(UpstreamProtocolError):
        read_tokens(body)


@given(st.binary())
def test_any_bytes_give_ids_or_our_error(body: bytes) -> None:
    for wire in (VllmWire(), SglangWire()):
        with pytest.raises(UpstreamProtocolError):
            wire.read_text(b'{"tokens":' + body)
    with contextlib.suppress(UpstreamProtocolError):
        assert read_tokens(b'{"tokens":[' + body).token_ids.dtype == np.uint32


def test_texts_are_read_by_each_engines_name() -> None:
    assert VllmWire().read_text(b'{"prompt":"h"}') == "h"
    assert SglangWire().read_text(b'{"text":"h"}') == "h"
    with pytest.raises(UpstreamProtocolError):
        SglangWire().read_text(b'{"prompt":"h"}')
