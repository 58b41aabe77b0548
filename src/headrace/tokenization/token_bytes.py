"""What each token of a `tokenizer.json` stands for, in bytes. Pure; works on the parsed file.

Byte-level vocabularies write each byte as one printable character (GPT-2's alphabet); SentencePiece-style ones write a
space as U+2581 and a raw byte as `<0x0A>`.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

Spec = Mapping[str, Any]
"""A parsed `tokenizer.json` or a part of it: foreign data, read with care."""

SPACE_MARK = "\u2581"

_RAW_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_NUM_ALPHABET = 256
_NFC_SHRINK = 3
"""NFC makes text shorter by at most this factor: three Hangul letters of three bytes become one syllable of three."""


def is_byte_level(spec: Spec) -> bool:
    """Whether the decoder is plain ByteLevel, so that decoding is joining the tokens' bytes."""
    return (spec.get("decoder") or {}).get("type") == "ByteLevel"


def byte_level_table(tokens: Sequence[str]) -> list[bytes]:
    """The bytes of every token, by id. A token with a character outside the alphabet stands for its own UTF-8."""
    byte_of = _byte_of_character()
    return [_byte_level_bytes(token, byte_of) for token in tokens]


def _byte_level_bytes(token: str, byte_of: Mapping[str, int]) -> bytes:
    try:
        return bytes(map(byte_of.__getitem__, token))
    except KeyError:
        return token.encode()


def _byte_of_character() -> dict[str, int]:
    """Printable bytes of Latin-1 write themselves; the other 68, in order, take the characters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(_NUM_ALPHABET)) - set(printable))
    return {chr(byte): byte for byte in printable} | {chr(_NUM_ALPHABET + n): byte for n, byte in enumerate(others)}


def raw_byte(token: str) -> int | None:
    """The byte that a byte-fallback token such as `<0x0A>` stands for; None for any other token."""
    match = _RAW_BYTE.fullmatch(token)
    return int(match.group(1), 16) if match else None


def is_sentencepiece(spec: Spec) -> bool:
    """Whether the decoder is Llama 2's: spaces for marks, raw bytes joined, perhaps one leading space taken off."""
    decoder = spec.get("decoder") or {}
    if decoder.get("type") != "Sequence":
        return False
    steps = list(decoder["decoders"])
    replace = {"type": "Replace", "pattern": {"String": SPACE_MARK}, "content": " "}
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    joined = [replace, {"type": "ByteFallback"}, {"type": "Fuse"}]
    return steps in (joined, [*joined, strip])


def strips_leading_space(spec: Spec) -> bool:
    """Of a decoder for which `is_sentencepiece` holds."""
    return bool(spec["decoder"]["decoders"][-1]["type"] == "Strip")


def max_token_bytes(spec: Spec, tokens: Sequence[str]) -> int:
    """No token stands for more UTF-8 bytes of input than this.

    Where the rules can drop input or map any length of it to one token (unknown tokens, lossy normalizers, added
    tokens that swallow white space) no such bound exists and the answer is `sys.maxsize`.
    """
    if any(added.get("lstrip") or added.get("rstrip") for added in spec["added_tokens"]):
        return sys.maxsize
    shrink = _normalizer_shrink(spec.get("normalizer"))
    if shrink is None or (spec["model"].get("type") or "BPE") != "BPE":
        return sys.maxsize
    if is_byte_level(spec) and _keeps_all_bytes(spec.get("pre_tokenizer")) and set(_byte_of_character()) <= set(tokens):
        added = (len(added["content"].encode()) for added in spec["added_tokens"])
        return shrink * max(*map(len, tokens), *added)
    if is_sentencepiece(spec) and spec["model"].get("byte_fallback") and spec.get("pre_tokenizer") is None:
        return shrink * max((len(token.encode()) for token in tokens), default=1)
    return sys.maxsize


def _normalizer_shrink(normalizer: Spec | None) -> int | None:
    """By what factor the normalizer can shorten text at most; None when that is not known."""
    if normalizer is None:
        return 1
    kind = normalizer["type"]
    if kind == "Sequence":
        factors = [_normalizer_shrink(step) for step in normalizer["normalizers"]]
        known = [factor for factor in factors if factor is not None]
        return max(known, default=1) if len(known) == len(factors) and known.count(_NFC_SHRINK) <= 1 else None
    if kind == "Replace":
        return 1 if (normalizer["pattern"], normalizer["content"]) == ({"String": " "}, SPACE_MARK) else None
    return {"Prepend": 1, "NFC": _NFC_SHRINK}.get(kind)


def _keeps_all_bytes(pre_tokenizer: Spec | None) -> bool:
    """Whether every byte of the text reaches the model, in the byte-level alphabet."""
    if pre_tokenizer is None:
        return False
    if pre_tokenizer["type"] != "Sequence":
        return bool(pre_tokenizer["type"] == "ByteLevel")
    steps = pre_tokenizer["pretokenizers"]
    return bool(steps) and steps[-1]["type"] == "ByteLevel" and all(_is_lossless_split(step) for step in steps[:-1])


def _is_lossless_split(step: Spec) -> bool:
    return bool(step["type"] == "Digits" or (step["type"] == "Split" and step["behavior"] != "Removed"))
