"""Whatever the pieces in which tokens come, the texts joined equal the decoding of the whole."""

import json
import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.tokenization import ByteTokenizer, HuggingFaceTokenizer, Tokenizer
from headrace.tokenization.incremental import WindowDecoder

_TEXTS = st.text(max_size=60) | st.sampled_from(
    ["你好世界 🙂🙃 é e\u0301", "  two  spaces\n\n", "👩‍👩‍👧‍👦 family", "naïve café"]
)
_REAL = ("gpt2", "qwen2.5", "llama2")


def _pieces(tokenizer: Tokenizer, token_ids: Sequence[int], *, cuts: random.Random, skips: bool) -> list[str]:
    decoder = tokenizer.incremental_decoder(skip_special_tokens=skips)
    pieces, start = [], 0
    while start < len(token_ids):
        end = start + cuts.choice((0, 1, 1, 1, 2, 5))
        pieces.append(decoder.push(token_ids[start:end]))
        start = end
    return [*pieces, decoder.finish()]


def _assert_same_as_whole(tokenizer: Tokenizer, token_ids: list[int], *, seed: int) -> None:
    for skips in (False, True):
        whole = tokenizer.decode(token_ids, skip_special_tokens=skips)
        assert "".join(_pieces(tokenizer, token_ids, cuts=random.Random(seed), skips=skips)) == whole


@given(text=_TEXTS, seed=st.integers(0, 1000))
def test_pieces_of_encoded_text_join_to_the_text_for_bytes(text: str, seed: int) -> None:
    tokenizer = ByteTokenizer()
    [token_ids] = tokenizer.encode_batch([text], add_special_tokens=True)
    _assert_same_as_whole(tokenizer, token_ids.tolist(), seed=seed)
    assert tokenizer.decode(token_ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("name", _REAL)
def test_pieces_of_encoded_text_join_to_the_decoding(name: str, real_tokenizer: Callable[[str], Tokenizer]) -> None:
    tokenizer = real_tokenizer(name)

    @settings(deadline=None)
    @given(text=_TEXTS, seed=st.integers(0, 1000))
    def check(text: str, seed: int) -> None:
        [token_ids] = tokenizer.encode_batch([text], add_special_tokens=True)
        _assert_same_as_whole(tokenizer, token_ids.tolist(), seed=seed)

    check()


@pytest.mark.parametrize("name", _REAL)
def test_pieces_of_random_ids_join_to_the_decoding(name: str, real_tokenizer: Callable[[str], Tokenizer]) -> None:
    """Most such lists are not UTF-8; small ids are the single bytes, so they are drawn often."""
    tokenizer = real_tokenizer(name)
    rng = random.Random(7)
    small, special = 400, sorted(tokenizer.special_token_ids)
    for seed in range(1500):
        ids = [
            rng.choice((rng.randrange(small), rng.randrange(tokenizer.vocab_size), rng.choice(special)))
            for _ in range(rng.randrange(12))
        ]
        _assert_same_as_whole(tokenizer, ids, seed=seed)


@pytest.mark.parametrize("name", _REAL)
def test_no_piece_but_the_last_holds_half_a_character(name: str, real_tokenizer: Callable[[str], Tokenizer]) -> None:
    tokenizer = real_tokenizer(name)
    text = "a🙂b你c\U00020000"
    [token_ids] = tokenizer.encode_batch([text], add_special_tokens=False)
    decoder = tokenizer.incremental_decoder(skip_special_tokens=False)
    pieces = [decoder.push([int(token_id)]) for token_id in token_ids]
    assert "\ufffd" not in "".join(pieces)
    assert "".join(pieces) + decoder.finish() == text


def test_text_is_given_out_as_soon_as_it_is_certain() -> None:
    decoder = ByteTokenizer().incremental_decoder(skip_special_tokens=True)
    assert [decoder.push([byte]) for byte in "é!".encode()] == ["", "é", "!"]


def test_ids_outside_the_vocabulary_add_nothing(real_tokenizer: Callable[[str], Tokenizer]) -> None:
    for tokenizer in (ByteTokenizer(), real_tokenizer("gpt2"), real_tokenizer("llama2")):
        [good] = tokenizer.encode_batch(["good"], add_special_tokens=False)
        token_ids = [10**6, *good.tolist(), -1]
        decoder = tokenizer.incremental_decoder(skip_special_tokens=False)
        assert decoder.push(token_ids) + decoder.finish() == tokenizer.decode(token_ids, skip_special_tokens=False)


def _word_piece() -> HuggingFaceTokenizer:
    words = ["[UNK]", "un", "##do", "##able", "is", "it", "!", ",", "don", "'", "t"]
    spec = {
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0},
        "padding": None,
        "added_tokens": [
            {
                "id": 0,
                "content": "[UNK]",
                "special": True,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
            }
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": None,
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {word: index for index, word in enumerate(words)},
        },
    }
    return HuggingFaceTokenizer(json.dumps(spec).encode(), name="words")


@given(st.lists(st.integers(0, 10), max_size=20), st.integers(0, 1000))
def test_rules_unknown_here_are_decoded_by_the_library(token_ids: list[int], seed: int) -> None:
    tokenizer = _word_piece()
    assert isinstance(tokenizer.incremental_decoder(skip_special_tokens=False), WindowDecoder)
    _assert_same_as_whole(tokenizer, token_ids, seed=seed)


def test_truncation_written_in_the_file_is_switched_off() -> None:
    [token_ids] = _word_piece().encode_batch(["is it is it is it!"], add_special_tokens=True)
    assert len(token_ids) == 7
