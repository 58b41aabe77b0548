"""Where texts may be cut: decided from the definition, and compared with the whole."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.tokenization import Tokenizer
from headrace.tokenization.admission import encode_in_parts
from headrace.tokenization.fuzz import fuzz_texts
from headrace.tokenization.huggingface import HuggingFaceTokenizer
from headrace.tokenization.segments import CHUNK_CHARS, CutRules, cut_rules, tiktoken_cut_rules

_NAMES = ["gpt2", "qwen2.5", "llama2"]


@pytest.fixture(scope="session")
def spec(data_file: Callable[[str], Path]) -> Callable[[str], dict[str, Any]]:
    """The parsed file of a tokenizer, free to be changed."""

    def read(name: str) -> dict[str, Any]:
        parsed: dict[str, Any] = json.loads(data_file(f"{name}_tokenizer.json").read_bytes())
        return copy.deepcopy(parsed)

    return read


def _rules(tokenizer: Tokenizer) -> CutRules:
    assert isinstance(tokenizer, HuggingFaceTokenizer)
    return tokenizer.cut_rules


@pytest.mark.parametrize(("name", "prefix_ids"), [("gpt2", ()), ("qwen2.5", ()), ("llama2", (1,))])
def test_known_definitions_have_cuts(
    name: str, prefix_ids: tuple[int, ...], real_tokenizer: Callable[[str], Tokenizer]
) -> None:
    rules = _rules(real_tokenizer(name))
    assert rules
    assert (rules.prefix_ids, rules.suffix_ids) == (prefix_ids, ())


def _add_token(content: str, **flags: bool) -> Callable[[dict[str, Any]], None]:
    added = {"id": 151700, "content": content, "normalized": False, "special": True, **flags}
    return lambda spec: spec["added_tokens"].append(added)


def _set(*path: str | int, value: object) -> Callable[[dict[str, Any]], None]:
    def change(spec: Any) -> None:
        for step in path[:-1]:
            spec = spec[step]
        spec[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_set("pre_tokenizer", "pretokenizers", 0, "pattern", value={"Regex": r"\S+|\s+"}), "regex is not a known"),
        (_set("pre_tokenizer", "pretokenizers", 0, "behavior", value="MergedWithNext"), "not a known one"),
        (_set("pre_tokenizer", "pretokenizers", 1, "add_prefix_space", value=True), "not a known one"),
        (_set("pre_tokenizer", value={"type": "Metaspace", "prepend_scheme": "first"}), "not a known one"),
        (_set("pre_tokenizer", value=None), "not a known one"),
        (_set("normalizer", value={"type": "NFKC"}), "neither absent nor NFC"),
        (_set("normalizer", value={"type": "Sequence", "normalizers": [{"type": "Lowercase"}]}), "neither absent nor"),
        (_set("model", "type", value="Unigram"), "not BPE"),
        (_set("model", "dropout", value=0.1), "dropout"),
        (_set("post_processor", value={"type": "BertProcessing"}), "post-processor"),
        (_add_token("<mask>", lstrip=True), "beside it"),
        (_add_token("<word>", single_word=True), "beside it"),
        (_add_token("two words"), "across a cut"),
        (_add_token("a \n"), None),
        (_add_token("end\nnext"), "across a cut"),
        (_add_token("word "), "across a cut"),
        (_add_token("\n\u212aelvin", normalized=True), "across a cut"),
        (_set("normalizer", value={"type": "Sequence", "normalizers": []}), None),
    ],
)
def test_what_is_not_known_to_be_exact_switches_cuts_off_and_says_why(
    change: Callable[[dict[str, Any]], None], reason: str | None, spec: Callable[[str], dict[str, Any]]
) -> None:
    definition = spec("qwen2.5")
    definition["post_processor"] = None
    change(definition)
    rules = cut_rules(definition)
    assert bool(rules) is (reason is None)
    assert reason is None or reason in rules.reason


@pytest.mark.parametrize("content", ["abc", "<x", "x>"])
def test_next_to_a_dropped_space_no_added_token_may_end_or_begin_with_a_letter(
    content: str, spec: Callable[[str], dict[str, Any]]
) -> None:
    definition = spec("llama2")
    assert cut_rules(definition)
    _add_token(content)(definition)
    assert bool(cut_rules(definition)) is (not (content[0].isalpha() or content[-1].isalpha()))


def test_a_vocabulary_that_merges_over_spaces_is_never_cut(spec: Callable[[str], dict[str, Any]]) -> None:
    definition = spec("llama2")
    definition["model"]["vocab"]["a\u2581b"] = 40000
    assert "reach over spaces" in cut_rules(definition).reason


def test_a_pattern_that_is_not_known_is_not_cut() -> None:
    assert not tiktoken_cut_rules(r"\w+|\s+", [])


@pytest.mark.parametrize("name", _NAMES)
def test_a_plan_divides_the_text_at_cuts_after_a_fixed_size(
    name: str, real_tokenizer: Callable[[str], Tokenizer]
) -> None:
    rules = _rules(real_tokenizer(name))
    text = "some words of a long text\n" * 1000
    cuts = rules.plan(text)
    assert set(cuts) <= set(rules.all_cuts(text))
    assert cuts == sorted(set(cuts))
    assert all(CHUNK_CHARS <= end - begin < CHUNK_CHARS + 20 for begin, end in zip([0, *cuts], cuts[:-1], strict=False))
    assert len(text) - cuts[-1] < 64
    longer = rules.plan(text + text)
    assert longer[: len(cuts) - 1] == cuts[:-1], "equal beginnings have equal parts"


def test_text_without_cuts_stays_whole_and_the_search_for_them_ends(
    real_tokenizer: Callable[[str], Tokenizer],
) -> None:
    rules = _rules(real_tokenizer("qwen2.5"))
    assert rules.plan("x" * 1_000_000) == []


@pytest.mark.parametrize("name", _NAMES)
def test_parts_between_all_cuts_have_the_ids_of_the_whole(
    name: str, real_tokenizer: Callable[[str], Tokenizer]
) -> None:
    tokenizer = real_tokenizer(name)
    assert isinstance(tokenizer, HuggingFaceTokenizer)
    rules = tokenizer.cut_rules
    num_cuts = 0
    for text in fuzz_texts(400, seed=77, special_tokens=tokenizer.added_tokens):
        cuts = list(rules.all_cuts(text))
        num_cuts += len(cuts)
        [whole] = tokenizer.encode_batch([text], add_special_tokens=True)
        assert encode_in_parts(text, tokenizer, rules, cuts=cuts).tolist() == whole.tolist(), text
    assert num_cuts > 250


@pytest.mark.parametrize("name", _NAMES)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pieces=st.lists(
        st.sampled_from(["a", "b ", " c", "\n", " ", "/", "'s", "1", "\u0301", "é", "<s>", "<|im_end|>", "."])
    )
)
def test_small_texts_of_borders_only_are_cut_exactly(
    name: str, pieces: list[str], real_tokenizer: Callable[[str], Tokenizer]
) -> None:
    tokenizer = real_tokenizer(name)
    rules = _rules(tokenizer)
    text = "".join(pieces)
    [whole] = tokenizer.encode_batch([text], add_special_tokens=True)
    assert encode_in_parts(text, tokenizer, rules, cuts=list(rules.all_cuts(text))).tolist() == whole.tolist()
