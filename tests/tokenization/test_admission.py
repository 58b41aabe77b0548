"""Shortcuts serve only after they gave the reference's ids."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from headrace.errors import InvalidRequestError, TokenizationError
from headrace.tokenization import ByteTokenizer, TokenIds, Tokenizer
from headrace.tokenization.admission import admit
from headrace.tokenization.fuzz import fuzz_texts
from headrace.tokenization.huggingface import HuggingFaceTokenizer
from headrace.tokenization.segments import GPT2_REGEX, CutRules, no_cuts, tiktoken_cut_rules
from headrace.tokenization.tiktoken_ranks import load_tiktoken


class _Accelerated(ByteTokenizer):
    """Bytes whose ids are the reference's but for a text that holds `wrong_for`."""

    def __init__(self, *, wrong_for: str) -> None:
        super().__init__()
        self._wrong_for = wrong_for

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[TokenIds]:
        encoded = super().encode_batch(texts, add_special_tokens=add_special_tokens)
        return [ids[:-1] if self._wrong_for in text else ids for ids, text in zip(encoded, texts, strict=True)]


class _Reference(ByteTokenizer):
    added_tokens = ("<|im_start|>", "<|im_end|>")

    def __init__(self, *, accelerated: Tokenizer | None, rules: CutRules) -> None:
        super().__init__()
        self._accelerated = accelerated
        self.cut_rules = rules

    def accelerated(self) -> Tokenizer:
        if self._accelerated is None:
            raise TokenizationError("there is none")
        return self._accelerated


_GOOD_RULES = tiktoken_cut_rules(GPT2_REGEX, [])


def test_an_encoder_and_cuts_that_are_right_are_admitted() -> None:
    accelerated = _Accelerated(wrong_for="no text has this")
    admission = admit(_Reference(accelerated=accelerated, rules=_GOOD_RULES), choice="auto", uses_cuts=True)
    assert admission.encoder is accelerated
    assert admission.cut_rules is _GOOD_RULES


@pytest.mark.parametrize("wrong_for", ["\u200d", "<|im_end|>", "\x00", "  \n", "<|im_s"])
def test_an_encoder_that_is_wrong_for_some_texts_is_refused_with_one_of_them(wrong_for: str) -> None:
    reference = _Reference(accelerated=_Accelerated(wrong_for=wrong_for), rules=_GOOD_RULES)
    admission = admit(reference, choice="auto", uses_cuts=True)
    assert admission.encoder is None
    assert "other ids" in admission.encoder_reason
    assert admission.cut_rules, "which are right for the reference"


def test_rules_that_are_wrong_are_refused() -> None:
    wrong = CutRules(pattern=_GOOD_RULES.pattern, num_dropped=1, reason="drops what bytes need")
    admission = admit(_Reference(accelerated=None, rules=wrong), choice="auto", uses_cuts=True)
    assert not admission.cut_rules
    assert "other ids than the whole" in admission.cut_rules.reason


def test_settings_and_missing_libraries_leave_the_reference() -> None:
    reference = _Reference(accelerated=_Accelerated(wrong_for="-never-"), rules=_GOOD_RULES)
    admission = admit(reference, choice="reference", uses_cuts=False)
    assert (admission.encoder, bool(admission.cut_rules)) == (None, False)
    without = admit(_Reference(accelerated=None, rules=no_cuts("unknown")), choice="auto", uses_cuts=True)
    assert (without.encoder, without.encoder_reason, without.cut_rules.reason) == (None, "there is none", "unknown")
    assert admit(ByteTokenizer(), choice="auto", uses_cuts=True).encoder is None


def test_a_comparison_stops_when_nobody_waits_for_it() -> None:
    reference = _Reference(accelerated=_Accelerated(wrong_for="-never-"), rules=_GOOD_RULES)
    admission = admit(reference, choice="auto", uses_cuts=True, should_stop=lambda: True)
    assert (admission.encoder, admission.encoder_reason) == (None, "the service was closed")


def test_fuzz_texts_are_the_same_every_time_and_hold_specials_whole_and_in_part() -> None:
    texts = list(fuzz_texts(300, seed=1, special_tokens=["<|end|>"]))
    assert texts == list(fuzz_texts(300, seed=1, special_tokens=["<|end|>"]))
    assert any("<|end|>" in text for text in texts)
    assert any("<|e" in text and "<|end|>" not in text for text in texts)
    assert any(ord(character) > 0xFFFF for text in texts for character in text)
    for text in texts:
        text.encode()  # no lone surrogates


@pytest.mark.parametrize("name", ["gpt2", "qwen2.5", "llama2"])
def test_fastokens_gives_the_ids_of_the_reference(name: str, real_tokenizer: Callable[[str], Tokenizer]) -> None:
    pytest.importorskip("fastokens")
    reference = real_tokenizer(name)
    assert isinstance(reference, HuggingFaceTokenizer)
    encoder = reference.accelerated()
    texts = list(fuzz_texts(500, seed=5, special_tokens=reference.added_tokens))
    for adds in (False, True):
        expected = [ids.tolist() for ids in reference.encode_batch(texts, add_special_tokens=adds)]
        together = encoder.encode_batch(texts, add_special_tokens=adds)
        assert [ids.tolist() for ids in together] == expected
        assert [encoder.encode_batch([text], add_special_tokens=adds)[0].tolist() for text in texts] == expected
        assert not together[0].flags.writeable
    with pytest.raises(InvalidRequestError, match=r"lone surrogate U\+D800"):
        encoder.encode_batch(["fine", "a\ud800"], add_special_tokens=False)
    assert (
        encoder.decode(encoder.encode_batch(["same"], add_special_tokens=False)[0], skip_special_tokens=False) == "same"
    )


def test_a_tokenizer_that_fastokens_does_not_support_is_named(tiny_tokenizer_json: bytes) -> None:
    with pytest.raises(TokenizationError, match="does not support tiny"):
        HuggingFaceTokenizer(tiny_tokenizer_json, name="tiny").accelerated()


def test_a_rank_file_is_a_tokenizer_whose_ids_are_tiktokens(data_file: Callable[[str], Path]) -> None:
    import tiktoken

    file = data_file("o200k_base.tiktoken")
    tokenizer = load_tiktoken(file)
    library = tiktoken.Encoding(
        "test",
        pat_str=tokenizer._encoding.pattern,
        mergeable_ranks=_ranks(file),
        special_tokens=tokenizer._special_tokens,
    )
    for text in fuzz_texts(200, seed=3, special_tokens=tokenizer.added_tokens):
        [token_ids] = tokenizer.encode_batch([text], add_special_tokens=True)
        assert token_ids.tolist() == library.encode(text, allowed_special="all")
        assert tokenizer.decode(token_ids, skip_special_tokens=False) == text
    assert tokenizer.token_strings([199999, 10**9]) == ["<|endoftext|>", ""]
    assert tokenizer.max_token_bytes == 128
    assert tokenizer.cut_rules
    with pytest.raises(InvalidRequestError, match="lone surrogate"):
        tokenizer.encode_batch(["\udfff"], add_special_tokens=False)


def _ranks(file: Path) -> dict[bytes, int]:
    import base64

    return {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, file.read_bytes().splitlines())}


def test_a_rank_file_without_a_known_name_needs_a_pattern_and_may_be_given_one(tmp_path: Path) -> None:
    file = tmp_path / "my.tiktoken"
    file.write_bytes(b"".join(b"%s %d\n" % (_b64(bytes([byte])), byte) for byte in range(256)))
    with pytest.raises(TokenizationError, match="has no pattern"):
        load_tiktoken(file)
    tokenizer = load_tiktoken(file, pattern=r"\S+|\s+", special_tokens={"<end>": 300})
    assert tokenizer.encode_batch(["a <end>"], add_special_tokens=False)[0].tolist() == [97, 32, 300]
    assert tokenizer.vocab_size == 301
    assert not tokenizer.cut_rules
    other = load_tiktoken(file, pattern=r"\S+|\s", special_tokens={"<end>": 300})
    assert other.fingerprint != tokenizer.fingerprint


@pytest.mark.parametrize("content", [b"no ranks", b"!!!! 5\n", b"YQ== five\n"])
def test_what_is_no_rank_file_is_named(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "o200k_base.tiktoken"
    file.write_bytes(content)
    with pytest.raises(TokenizationError, match="is not a tiktoken rank file"):
        load_tiktoken(file)
    with pytest.raises(TokenizationError, match="cannot read the tokenizer"):
        load_tiktoken(tmp_path / "missing" / "o200k_base.tiktoken")


def _b64(token: bytes) -> bytes:
    import base64

    return base64.b64encode(token)
