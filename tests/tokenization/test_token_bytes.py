import sys
from typing import Any

import pytest

from headrace.tokenization import token_bytes

_ALPHABET = [chr(code) for code in (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100), *range(0x100, 0x144))]


def _byte_level(**changes: Any) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel"},
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE"},
    }
    return spec | changes


def test_the_alphabet_writes_every_byte_once() -> None:
    assert sorted(token_bytes.byte_level_table(_ALPHABET)) == [bytes((byte,)) for byte in range(256)]


def test_a_token_with_a_character_outside_the_alphabet_stands_for_its_utf8() -> None:
    assert token_bytes.byte_level_table(["\u0120a", "<a b>", "\u4f60"]) == [b" a", b"<a b>", "\u4f60".encode()]


@pytest.mark.parametrize(("token", "byte"), [("<0x0A>", 10), ("<0xff>", 255), ("<0x1>", None), ("0x0A", None)])
def test_raw_bytes_are_recognised(token: str, byte: int | None) -> None:
    assert token_bytes.raw_byte(token) == byte


def test_the_longest_token_bounds_a_lossless_vocabulary() -> None:
    tokens = [*_ALPHABET, "\u0120" * 9]
    assert token_bytes.max_token_bytes(_byte_level(), tokens) == 9
    assert token_bytes.max_token_bytes(_byte_level(normalizer={"type": "NFC"}), tokens) == 27
    added = [{"content": "<\u4f60\u4f60\u4f60\u4f60>", "lstrip": False, "rstrip": False}]
    assert token_bytes.max_token_bytes(_byte_level(added_tokens=added), [*tokens, added[0]["content"]]) == 14
    split = {"type": "Split", "behavior": "Isolated"}
    steps = {"type": "Sequence", "pretokenizers": [split, {"type": "Digits"}, {"type": "ByteLevel"}]}
    assert token_bytes.max_token_bytes(_byte_level(pre_tokenizer=steps), tokens) == 9


@pytest.mark.parametrize(
    "changes",
    [
        {"normalizer": {"type": "Lowercase"}},
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "StripAccents"}]}},
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"pre_tokenizer": None},
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": []}},
        {
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [{"type": "Split", "behavior": "Removed"}, {"type": "ByteLevel"}],
            }
        },
        {"model": {"type": "WordPiece"}},
        {"decoder": {"type": "WordPiece"}},
        {"decoder": None},
        {"added_tokens": [{"content": "<mask>", "lstrip": True, "rstrip": False}]},
    ],
)
def test_where_input_can_vanish_there_is_no_bound(changes: dict[str, Any]) -> None:
    assert token_bytes.max_token_bytes(_byte_level(**changes), _ALPHABET) == sys.maxsize


def test_a_vocabulary_that_lacks_bytes_has_no_bound() -> None:
    assert token_bytes.max_token_bytes(_byte_level(), _ALPHABET[1:]) == sys.maxsize
