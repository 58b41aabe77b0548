"""Where a text may be cut so that the ids of its parts, joined, are the ids of the whole. Pure; reads `tokenizer.json`.

Theory. The library splits at added tokens, normalizes what lies between, splits that by a regex into words, and merges
pairs inside words only. A cut is exact when it is a border of words in every text that has the same characters around
it, when normalizing does not reach over it, and when no added token can lie across it. Whether a regex has such borders
was worked out by hand for the regexes below, and for these only: any other text of a regex switches cutting off.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.tokenization.token_bytes import SPACE_MARK, Spec

LOOKAHEAD = 2
"""Whether a place is a cut depends on the characters before it and on this many after it."""

CHUNK_CHARS = 4096
"""A part ends at the first cut at or after this many characters, so that equal beginnings give equal parts."""

MIN_CUT_CHARS = 2048
"""Shorter texts are encoded whole: knowing their cuts gains less than it costs."""

_MAX_SEARCHED_CHARS = 64 * 1024
"""A search that found no cut in so much text gives up: it holds the interpreter, about 1 ms."""

_LAST_CUT_WINDOWS = (64, 512, CHUNK_CHARS)

# What some Unicode versions call white space and others do not is never beside a cut.
_NOT_SPACE = r"[^\s\u180e\u200b\ufeff]"
_LETTER_CUT = r"[A-Za-z](?= [A-Za-z])"
_CL100K_CUT = re.compile(rf"\n(?=(?!/){_NOT_SPACE})|{_LETTER_CUT}")
_GPT2_CUT = re.compile(rf"{_NOT_SPACE}\n(?={_NOT_SPACE})|{_LETTER_CUT}")
_SENTENCEPIECE_CUT = re.compile(_LETTER_CUT)

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_NO_WORD = r"[^\r\n\p{L}\p{N}]?"
_END_OF_CL100K = r"\s*[\r\n]+|\s+(?!\S)|\s+"

GPT2_REGEX = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CL100K_REGEX = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
O200K_REGEX = (
    rf"{_NO_WORD}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_NO_WORD}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_END_OF_CL100K}"
)
_QWEN2_REGEX = rf"{_CONTRACTIONS}|{_NO_WORD}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_END_OF_CL100K}"
_LLAMA3_REGEX = rf"{_CONTRACTIONS}|{_NO_WORD}\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_END_OF_CL100K}"
_TEKKEN_REGEX = (
    rf"{_NO_WORD}{_UPPER}*{_LOWER}+|{_NO_WORD}{_UPPER}+{_LOWER}*"
    rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_END_OF_CL100K}"
)

_CUT_OF_REGEX: Mapping[str, re.Pattern[str]] = {
    **dict.fromkeys((CL100K_REGEX, O200K_REGEX, _QWEN2_REGEX, _LLAMA3_REGEX, _TEKKEN_REGEX), _CL100K_CUT),
    GPT2_REGEX: _GPT2_CUT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CutRules:
    """The cuts of one tokenizer. Parts are encoded without special tokens; `prefix_ids` and `suffix_ids` go around."""

    pattern: re.Pattern[str] | None
    """The end of each of its matches is a cut. None: nothing may be cut."""
    num_dropped: int = 0
    """Characters after a cut that the next part leaves out: the tokenizer itself puts the space there."""
    prefix_ids: tuple[int, ...] = ()
    suffix_ids: tuple[int, ...] = ()
    reason: str
    """Why texts are cut like this, or not at all; for people."""

    def __bool__(self) -> bool:
        return self.pattern is not None

    def plan(self, text: str, *, start: int = 0) -> list[int]:
        """The cuts at which to divide `text` from the cut `start` on, and the last one before its end."""
        if self.pattern is None or len(text) < MIN_CUT_CHARS:
            return []
        cuts: list[int] = []
        position, num_chars = start, len(text)
        while num_chars - position > CHUNK_CHARS:
            at = position + CHUNK_CHARS
            if (match := self.pattern.search(text, at, at + _MAX_SEARCHED_CHARS)) is None:
                break
            position = match.end()
            cuts.append(position)
        if (last := self._last_cut(text, after=position)) is not None:
            cuts.append(last)
        return cuts

    def _last_cut(self, text: str, *, after: int) -> int | None:
        """The last cut that a short look at the end of `text` finds: what grows there is encoded from it on."""
        assert self.pattern is not None
        for window in _LAST_CUT_WINDOWS:
            begin = max(after, len(text) - window)
            last = max((match.end() for match in self.pattern.finditer(text, begin)), default=after)
            if last > after:
                return last
            if begin == after:
                return None
        return None

    def all_cuts(self, text: str) -> Iterator[int]:
        """Every cut, for tests of the rules."""
        return (match.end() for match in self.pattern.finditer(text)) if self.pattern else iter(())

    def parts(self, text: str, cuts: Sequence[int], *, start: int = 0) -> list[str]:
        """`text` from the cut `start` on (0: its beginning), divided at `cuts`."""
        begins = [start + self.num_dropped if start else 0, *(cut + self.num_dropped for cut in cuts)]
        return [text[begin:end] for begin, end in zip(begins, [*cuts, len(text)], strict=True)]


def no_cuts(reason: str) -> CutRules:
    return CutRules(pattern=None, reason=reason)


def cut_rules(spec: Spec) -> CutRules:
    """The rules for a parsed `tokenizer.json`."""
    found = _cut_of(spec)
    if isinstance(found, str):
        return no_cuts(found)
    pattern, num_dropped = found
    if (flaw := _flaw_of_added_tokens(spec, pattern, is_sentencepiece=num_dropped > 0)) is not None:
        return no_cuts(flaw)
    affixes = _affixes(spec.get("post_processor"))
    if affixes is None:
        return no_cuts("the post-processor is not known")
    prefix_ids, suffix_ids = affixes
    return CutRules(
        pattern=pattern,
        num_dropped=num_dropped,
        prefix_ids=prefix_ids,
        suffix_ids=suffix_ids,
        reason="exact cuts are known for this pre-tokenizer",
    )


def tiktoken_cut_rules(regex: str, special_tokens: Sequence[str]) -> CutRules:
    """The rules for a regex and special tokens as tiktoken uses them."""
    pattern = _CUT_OF_REGEX.get(regex)
    if pattern is None:
        return no_cuts("the pattern is not one whose cuts are known")
    if any(_lies_across_a_cut(token, pattern) for token in special_tokens):
        return no_cuts("a special token may lie across a cut")
    return CutRules(pattern=pattern, reason="exact cuts are known for this pattern")


def _cut_of(spec: Spec) -> tuple[re.Pattern[str], int] | str:
    """The pattern and the characters dropped after a cut, or why there are none."""
    model = spec["model"]
    if (model.get("type") or "BPE") != "BPE":
        return f"the model is {model.get('type')}, not BPE"
    if model.get("dropout") or model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        return "the BPE model has dropout, a prefix or a suffix"
    if _is_llama2(spec):
        return (_SENTENCEPIECE_CUT, 1) if _never_merges_over_spaces(model) else "tokens reach over spaces"
    if not _is_identity_or_nfc(spec.get("normalizer")):
        return "the normalizer is neither absent nor NFC"
    regex = _regex_of(spec.get("pre_tokenizer"))
    if regex is None:
        return "the pre-tokenizer is not a known one"
    return (_CUT_OF_REGEX[regex], 0) if regex in _CUT_OF_REGEX else "the pre-tokenizer's regex is not a known one"


def _is_identity_or_nfc(normalizer: Spec | None) -> bool:
    if normalizer is None or normalizer["type"] == "NFC":
        return True
    return bool(normalizer["type"] == "Sequence" and all(map(_is_identity_or_nfc, normalizer["normalizers"])))


def _regex_of(pre_tokenizer: Spec | None) -> str | None:
    """The regex by which words are split when that is all the pre-tokenizer does besides mapping bytes."""
    if pre_tokenizer is None:
        return None
    steps = pre_tokenizer["pretokenizers"] if pre_tokenizer["type"] == "Sequence" else [pre_tokenizer]
    if not steps or steps[-1]["type"] != "ByteLevel" or steps[-1].get("add_prefix_space", True):
        return None
    uses_own_regex = steps[-1].get("use_regex", True)
    if uses_own_regex:
        return GPT2_REGEX if all(step["type"] == "Digits" for step in steps[:-1]) else None
    if len(steps) != 2 or steps[0]["type"] != "Split" or not _isolates(steps[0]):
        return None
    regex = steps[0]["pattern"].get("Regex")
    return regex if isinstance(regex, str) else None


def _isolates(split: Spec) -> bool:
    return (split["behavior"], bool(split.get("invert"))) in (("Isolated", False), ("Removed", True))


def _is_llama2(spec: Spec) -> bool:
    """A mark is put before every stretch between added tokens and for every space, and there are no words.

    So a part that begins after a space gets that very mark when the space is left out.
    """
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE_MARK}
    normalizer = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": SPACE_MARK}, replace]}
    return spec.get("normalizer") == normalizer and spec.get("pre_tokenizer") is None


def _never_merges_over_spaces(model: Mapping[str, Any]) -> bool:
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    vocabulary = model["vocab"]
    has_singles = all(token in vocabulary for token in (*letters, SPACE_MARK))
    return has_singles and not any(SPACE_MARK in token.lstrip(SPACE_MARK) for token in vocabulary)


def _flaw_of_added_tokens(spec: Spec, pattern: re.Pattern[str], *, is_sentencepiece: bool) -> str | None:
    for added in spec["added_tokens"]:
        content = added["content"]
        if added.get("lstrip") or added.get("rstrip") or added.get("single_word"):
            return f"the added token {content!r} takes part of what is beside it"
        if _lies_across_a_cut(content, pattern):
            return f"the added token {content!r} may lie across a cut"
        if is_sentencepiece and (_is_letter(content[:1]) or _is_letter(content[-1:])):
            return f"the added token {content!r} may touch a cut"
    return None


def _lies_across_a_cut(token: str, pattern: re.Pattern[str]) -> bool:
    """Whether some text that has `token` in it has a cut strictly inside it, before or after normalizing."""
    forms = {token, unicodedata.normalize("NFC", token)}
    return any(
        1 < match.end() < 1 + len(form)
        for form in forms
        for after in ("a", " a", "<")
        for match in pattern.finditer("a" + form + after)
    )


def _is_letter(character: str) -> bool:
    return character.isascii() and character.isalpha()


def _affixes(post_processor: Spec | None) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """What the post-processor puts before and after a text; None when it is not known to do just that."""
    if post_processor is None or post_processor["type"] == "ByteLevel":
        return (), ()
    if post_processor["type"] == "Sequence":
        found = [_affixes(step) for step in post_processor["processors"]]
        known = [affixes for affixes in found if affixes is not None]
        adding = [affixes for affixes in known if affixes != ((), ())]
        if len(known) < len(found) or len(adding) > 1:
            return None
        return adding[0] if adding else ((), ())
    return _template_affixes(post_processor) if post_processor["type"] == "TemplateProcessing" else None


def _template_affixes(template: Spec) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    before: list[int] = []
    after: list[int] = []
    num_texts = 0
    for step in template["single"]:
        if "Sequence" in step:
            num_texts += 1
        else:
            ids = template["special_tokens"][step["SpecialToken"]["id"]]["ids"]
            (after if num_texts else before).extend(ids)
    return (tuple(before), tuple(after)) if num_texts == 1 else None
