"""What an answer must look like is checked where it is written, and compiled to masks that let nothing else through."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tokenizers import Tokenizer

from headrace.engine.guided.grammar import GrammarCompiler, GrammarMatcher
from headrace.engine.sampling_params import SamplingParams
from headrace.engine.structured_outputs import GuidedDecodingParams, StructuredOutputsParams
from headrace.errors import EngineGenerateError, InvalidRequestError, UnsupportedError

EOS = (2, 0)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "structured_outputs"),
        ({"json_object": False}, "structured_outputs"),
        ({"regex": ""}, "structured_outputs"),
        ({"regex": "a", "grammar": "b"}, "structured_outputs"),
        ({"json": "{"}, "structured_outputs.json"),
        ({"json": "[1]"}, "structured_outputs.json"),
        ({"json": {"a": object()}}, "structured_outputs.json"),
        ({"json": "[" * 100_000}, "structured_outputs.json"),
        ({"regex": 7}, "structured_outputs.regex"),
        ({"regex": "a" * 300_000}, "structured_outputs.regex"),
        ({"choice": "yes"}, "structured_outputs.choice"),
        ({"choice": ["yes", ""]}, "structured_outputs.choice"),
        ({"choice": ["a"] * 5000}, "structured_outputs.choice"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_wrong_form_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        StructuredOutputsParams(**fields)
    assert caught.value.param == param


@pytest.mark.parametrize("name", ["structural_tag", "disable_additional_properties"])
def test_what_is_not_built_is_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        StructuredOutputsParams(regex="a", **{name: "x"})
    assert caught.value.param == f"structured_outputs.{name}"


def test_a_schema_is_the_same_as_text_and_as_an_object() -> None:
    as_object = StructuredOutputsParams(json={"type": "object"})
    assert as_object == StructuredOutputsParams(json='{"type":   "object"}')
    assert len({as_object, StructuredOutputsParams(json={"type": "object"})}) == 1


def test_an_empty_schema_asks_for_json_of_any_kind() -> None:
    wanted = StructuredOutputsParams(json={})
    assert (wanted.kind, wanted.json) == ("json", "{}")


def test_the_older_name_is_taken() -> None:
    wanted = GuidedDecodingParams(choice=["a", "b"])
    params = SamplingParams(guided_decoding=wanted)
    assert (params.structured_outputs, params.guided_decoding) == (wanted, None)
    with pytest.raises(InvalidRequestError, match="not both"):
        SamplingParams(guided_decoding=wanted, structured_outputs=wanted)


def test_a_dict_is_not_taken_for_it() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(structured_outputs={"json": {}})  # type: ignore[arg-type]
    assert caught.value.param == "structured_outputs"


def test_it_crosses_to_the_core_unchanged() -> None:
    params = SamplingParams(structured_outputs=StructuredOutputsParams(choice=["a", "b"]), logit_bias={3: 1.5})
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params


@pytest.fixture(scope="module")
def compile_grammar(tiny_model_dir: Path) -> GrammarCompiler:
    return GrammarCompiler(str(tiny_model_dir), eos_token_ids=EOS)


def allowed(matcher: GrammarMatcher) -> set[int]:
    bits = np.unpackbits(np.frombuffer(matcher.next_mask, dtype=np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


def walk(matcher: GrammarMatcher, tokenizer: Tokenizer, text: str) -> None:
    """Take `text` token by token, each of which must be allowed."""
    for token_id in tokenizer.encode(text, add_special_tokens=False).ids:
        assert not matcher.is_complete
        assert token_id in allowed(matcher), f"{tokenizer.id_to_token(token_id)!r} of {text!r} is forbidden"
        matcher.advance(token_id)
        assert matcher.error is None


@pytest.mark.parametrize(
    ("fields", "text", "foreign"),
    [
        ({"choice": ["the wheel", 'the "stone"']}, 'the "stone"', "grain"),
        ({"regex": r"[0-9]{3}-[a-z]{2}"}, "123-ab", "x"),
        ({"json": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}, '{"a": 17}', "["),
        ({"json_object": True}, '{"b": [1, null]}', "["),
        ({"grammar": 'root ::= "water" | "to the " root'}, "to the to the water", "river"),
        ({"grammar": 'start: "water" | "to the " start'}, "to the water", "river"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_text_of_the_form_passes_and_no_other(
    fields: dict[str, Any], text: str, foreign: str, compile_grammar: GrammarCompiler, tiny_model_dir: Path
) -> None:
    tokenizer = Tokenizer.from_file(str(tiny_model_dir / "tokenizer.json"))
    grammar = compile_grammar(StructuredOutputsParams(**fields))
    matcher = grammar.start()
    assert tokenizer.encode(foreign, add_special_tokens=False).ids[0] not in allowed(matcher)
    walk(matcher, tokenizer, text)
    assert matcher.is_complete or allowed(matcher) & set(EOS), "an answer that is complete may end"
    walk(grammar.start(), tokenizer, text)  # the first answer has left no trace in the grammar


def test_thousands_of_choices_that_begin_alike_are_followed(
    compile_grammar: GrammarCompiler, tiny_model_dir: Path
) -> None:
    tokenizer = Tokenizer.from_file(str(tiny_model_dir / "tokenizer.json"))
    choices = [f"customer-{number:05}" for number in range(4096)]
    grammar = compile_grammar(StructuredOutputsParams(choice=choices))
    for choice in (choices[0], choices[2718], choices[-1]):
        matcher = grammar.start()
        walk(matcher, tokenizer, choice)
        assert matcher.is_complete


def test_a_choice_means_itself_whatever_its_characters(compile_grammar: GrammarCompiler, tiny_model_dir: Path) -> None:
    tokenizer = Tokenizer.from_file(str(tiny_model_dir / "tokenizer.json"))
    odd = [f"x{chr(code)}y" for code in (*range(0x80), 0xE9, 0x2028, 0x1F642)]
    grammar = compile_grammar(StructuredOutputsParams(choice=[*odd, "x\\d", "(?i)x", "a|b", "a&b", "~a", "[^x]"]))
    for choice in (*odd, "x\\d", "(?i)x", "a|b", "a&b", "~a", "[^x]"):
        walk(grammar.start(), tokenizer, choice)
    matcher = grammar.start()
    matcher.advance(tokenizer.encode("Z", add_special_tokens=False).ids[0])
    assert matcher.error is not None


def test_a_choice_that_begins_another_may_end_or_go_on(compile_grammar: GrammarCompiler, tiny_model_dir: Path) -> None:
    tokenizer = Tokenizer.from_file(str(tiny_model_dir / "tokenizer.json"))
    matcher = compile_grammar(StructuredOutputsParams(choice=["ab", "a"])).start()
    walk(matcher, tokenizer, "a")
    assert allowed(matcher) & set(EOS)
    walk(matcher, tokenizer, "b")
    assert matcher.is_complete


def test_an_answer_is_complete_when_nothing_may_follow(compile_grammar: GrammarCompiler, tiny_model_dir: Path) -> None:
    tokenizer = Tokenizer.from_file(str(tiny_model_dir / "tokenizer.json"))
    matcher = compile_grammar(StructuredOutputsParams(regex="ab?")).start()
    walk(matcher, tokenizer, "a")
    assert not matcher.is_complete
    walk(matcher, tokenizer, "b")
    assert matcher.is_complete


def test_the_end_of_the_sequence_completes_it(compile_grammar: GrammarCompiler, tiny_model_dir: Path) -> None:
    matcher = compile_grammar(StructuredOutputsParams(regex="ab?")).start()
    walk(matcher, Tokenizer.from_file(str(tiny_model_dir / "tokenizer.json")), "a")
    matcher.advance(EOS[0])
    assert matcher.is_complete
    assert matcher.error is None


def test_a_token_that_does_not_fit_is_an_error(compile_grammar: GrammarCompiler, tiny_model_dir: Path) -> None:
    matcher = compile_grammar(StructuredOutputsParams(regex="ab")).start()
    matcher.advance(Tokenizer.from_file(str(tiny_model_dir / "tokenizer.json")).token_to_id("z"))
    assert isinstance(matcher.error, EngineGenerateError)


def test_a_schema_that_cannot_be_followed_is_the_requests_error(
    compile_grammar: GrammarCompiler, tiny_model_dir: Path
) -> None:
    tokenizer = Tokenizer.from_file(str(tiny_model_dir / "tokenizer.json"))
    properties = {f"p{number}": {"type": "integer"} for number in range(30)}
    schema = {"anyOf": [{"type": "object", "properties": properties}] * 200}
    matcher = compile_grammar(StructuredOutputsParams(json=schema)).start()
    matcher.advance(tokenizer.encode("{", add_special_tokens=False).ids[0])
    assert isinstance(matcher.error, InvalidRequestError)
    assert matcher.error.param == "structured_outputs.json"
    assert "too complex to be followed; make it simpler" in matcher.error.message


def test_a_schema_that_refers_to_itself_alone_is_refused_in_words(compile_grammar: GrammarCompiler) -> None:
    with pytest.raises(InvalidRequestError, match=r"cannot be used: no text can be of this form; does a \$ref"):
        compile_grammar(StructuredOutputsParams(json={"$ref": "#"}))


def test_white_space_can_be_ruled_out(compile_grammar: GrammarCompiler, tiny_model_dir: Path) -> None:
    tokenizer = Tokenizer.from_file(str(tiny_model_dir / "tokenizer.json"))
    matcher = compile_grammar(StructuredOutputsParams(json_object=True, disable_any_whitespace=True)).start()
    walk(matcher, tokenizer, "{")
    texts = {tokenizer.decode([token_id]) for token_id in allowed(matcher)}
    assert '"' in texts
    assert not any(text.isspace() for text in texts)


@pytest.mark.parametrize(
    "fields",
    [
        {"json": {"type": "frob"}},
        {"json": {"$ref": "#/nowhere"}},
        {"regex": "(a"},
        {"regex": "(?=a)b"},
        {"grammar": "((((("},
        {"grammar": "root ::= missing"},
        {"grammar": "root ::= " + "(" * 5000},
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_the_library_refuses_names_the_field(fields: dict[str, Any], compile_grammar: GrammarCompiler) -> None:
    wanted = StructuredOutputsParams(**fields)
    with pytest.raises(InvalidRequestError, match="cannot be used") as caught:
        compile_grammar(wanted)
    assert caught.value.param == wanted.param


def test_a_model_without_a_tokenizer_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"tokenizer\.json"):
        GrammarCompiler(str(tmp_path), eos_token_ids=EOS)(StructuredOutputsParams(regex="a"))
