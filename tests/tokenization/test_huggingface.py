from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import InvalidRequestError, TokenizationError
from headrace.tokenization import HuggingFaceTokenizer, Tokenizer

_REAL = ("gpt2", "qwen2.5", "llama2")


@pytest.mark.parametrize("name", _REAL)
@pytest.mark.parametrize("add_special_tokens", [True, False])
def test_ids_are_those_of_the_reference(
    name: str,
    add_special_tokens: bool,
    real_tokenizer: Callable[[str], Tokenizer],
    data_file: Callable[[str], Path],
) -> None:
    ours = real_tokenizer(name)
    reference = tokenizers.Tokenizer.from_file(str(data_file(f"{name}_tokenizer.json")))

    @settings(deadline=None)
    @given(st.lists(st.text(max_size=80), max_size=4))
    def check(texts: list[str]) -> None:
        expected = [reference.encode(text, add_special_tokens=add_special_tokens).ids for text in texts]
        found = ours.encode_batch(texts, add_special_tokens=add_special_tokens)
        assert [token_ids.tolist() for token_ids in found] == expected

    check()


@pytest.mark.parametrize("name", _REAL)
def test_no_text_has_fewer_tokens_than_the_bound_allows(name: str, real_tokenizer: Callable[[str], Tokenizer]) -> None:
    tokenizer = real_tokenizer(name)
    long_tokens = sorted(tokenizer.token_strings(range(tokenizer.vocab_size)), key=len)[-20:]
    texts = [text * 3 for text in (*long_tokens, " " * 500, "=" * 500, "\u2581" * 200, "\u1100\u1161\u11a8" * 50)]
    for text, token_ids in zip(texts, tokenizer.encode_batch(texts, add_special_tokens=False), strict=True):
        assert len(token_ids) * tokenizer.max_token_bytes >= len(text.encode())


def test_ids_are_packed_and_cannot_be_written(real_tokenizer: Callable[[str], Tokenizer]) -> None:
    for text in ("some text", ""):
        [token_ids] = real_tokenizer("gpt2").encode_batch([text], add_special_tokens=False)
        assert token_ids.dtype == np.uint32
        assert not token_ids.flags.writeable


def test_a_lone_surrogate_is_refused_with_its_place(real_tokenizer: Callable[[str], Tokenizer]) -> None:
    with pytest.raises(InvalidRequestError, match=r"lone surrogate U\+D83D at position 3") as refusal:
        real_tokenizer("gpt2").encode_batch(["fine", "abc\ud83d"], add_special_tokens=False)
    assert refusal.value.param == "prompt"


def test_special_tokens_in_the_text_become_their_ids_and_are_skipped_on_request(
    real_tokenizer: Callable[[str], Tokenizer],
) -> None:
    tokenizer = real_tokenizer("qwen2.5")
    [token_ids] = tokenizer.encode_batch(["hi<|im_end|>"], add_special_tokens=False)
    assert tokenizer.token_strings(token_ids)[-1] == "<|im_end|>"
    assert int(token_ids[-1]) in tokenizer.special_token_ids
    assert tokenizer.decode(token_ids, skip_special_tokens=True) == "hi"
    assert tokenizer.decode(token_ids, skip_special_tokens=False) == "hi<|im_end|>"


def test_the_fingerprint_follows_the_content_not_the_spacing(tiny_tokenizer_json: bytes) -> None:
    raw = tiny_tokenizer_json
    original = HuggingFaceTokenizer(raw, name="a")
    assert HuggingFaceTokenizer(raw + b"\n  ", name="b").fingerprint == original.fingerprint
    changed = raw.replace(b"<|endoftext|>", b"<|endofdoc|>")
    assert HuggingFaceTokenizer(changed, name="c").fingerprint != original.fingerprint


@pytest.mark.parametrize("content", [b"no json", b"[]", b'{"model": {"type": "Unheard"}}'])
def test_what_is_not_a_tokenizer_is_refused_by_name(content: bytes) -> None:
    with pytest.raises(TokenizationError, match="some/file"):
        HuggingFaceTokenizer(content, name="some/file")
