"""An answer's text continues its prompt's, and single tokens have texts of their own."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from headrace.engine.front.bad_words import encode_bad_words
from headrace.engine.front.detokenize import TokenTexts, open_decoder
from headrace.engine.front.request_progress import RequestProgress
from headrace.engine.outputs import RequestOutputKind
from headrace.engine.sampling_params import SamplingParams
from headrace.engine.wire.messages import TokenDelta
from headrace.errors import InvalidRequestError
from headrace.tokenization import ByteTokenizer
from headrace.tokenization.incremental import WindowDecoder
from headrace.tokenization.load import load_tokenizer
from headrace.tokenization.tokenizer import Tokenizer as AnyTokenizer

BYTES = {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
WORDS = {"▁the": 300, "▁water": 301, "s": 302, "▁": 303}


@pytest.fixture(scope="module")
def llama_like(tmp_path_factory: pytest.TempPathFactory) -> AnyTokenizer:
    """Writes spaces as U+2581 and drops the one at the beginning of a text, as Llama 2's does."""
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2, **BYTES, **WORDS}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    directory = tmp_path_factory.mktemp("llama-like")
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    return load_tokenizer(directory)


def answer(tokenizer: Any, prompt: list[int], token_ids: list[int], **params: Any) -> str:
    decoder = open_decoder(tokenizer, SamplingParams(**params), np.array(prompt, dtype=np.uint32))
    assert decoder is not None
    return "".join(decoder.push((token_id,)) for token_id in token_ids) + decoder.finish()


def test_the_first_word_keeps_its_space(llama_like: Any) -> None:
    assert answer(llama_like, [1, 300], [301, 302]) == " waters"
    assert llama_like.decode([301, 302], skip_special_tokens=True) == "waters"


def test_a_prompt_of_special_tokens_alone_is_followed_by_a_beginning(llama_like: Any) -> None:
    assert answer(llama_like, [1], [301]) == "water"


def test_half_a_character_at_the_prompts_end_stays_out_of_the_answer(llama_like: Any) -> None:
    assert answer(llama_like, [300, BYTES["<0xC3>"]], [301]) == " water"


def test_a_byte_level_answer_is_its_own_text(tiny_model_dir: Path) -> None:
    tokenizer = load_tokenizer(tiny_model_dir)
    ids = tokenizer.encode_batch([" the wheel é"], add_special_tokens=False)[0].tolist()
    assert answer(tokenizer, ids[:2], ids) == " the wheel é"


def test_no_text_is_made_when_none_is_wanted() -> None:
    params = SamplingParams(detokenize=False)
    assert open_decoder(ByteTokenizer(), params, np.array([1], dtype=np.uint32)) is None


class SpacingTokenizer(ByteTokenizer):
    """Writes a space before every token: 1 and 2 are special."""

    special_token_ids = frozenset({1, 2})

    def decode(self, token_ids: Any, *, skip_special_tokens: bool) -> str:
        return " ".join(self.token_strings(token_ids))

    def token_strings(self, token_ids: Any) -> list[str]:
        return [f"<{token_id}>" for token_id in token_ids]

    def incremental_decoder(self, *, skip_special_tokens: bool) -> WindowDecoder:
        return WindowDecoder(lambda ids: self.decode(ids, skip_special_tokens=skip_special_tokens))


@pytest.mark.parametrize(("spaces", "text"), [(True, " <1> <2> <5> <1>"), (False, " <1><2> <5> <1>")])
def test_special_tokens_are_joined_when_asked(spaces: bool, text: str) -> None:
    params = {"skip_special_tokens": False, "spaces_between_special_tokens": spaces}
    assert answer(SpacingTokenizer(), [9], [1, 2, 5, 1], **params) == text


def test_a_tokens_text_is_decoded_once() -> None:
    class Counting(ByteTokenizer):
        num_decoded = 0

        def decode(self, token_ids: Any, *, skip_special_tokens: bool) -> str:
            type(self).num_decoded += 1
            return super().decode(token_ids, skip_special_tokens=skip_special_tokens)

    texts = TokenTexts(Counting())
    assert [texts(97), texts(98), texts(97)] == ["a", "b", "a"]
    assert Counting.num_decoded == 2


SPLIT = {"no": [5], " no": [6], "none": [5, 7], " none": [8], "  ": [], "un": [9], " un": [3, 9]}


async def encode(text: str) -> list[int]:
    return SPLIT[text]


async def test_a_bad_word_is_forbidden_with_and_without_a_space() -> None:
    assert await encode_bad_words(["no"], encode=encode) == ((5,), (6,))


async def test_a_spaced_form_counts_unless_it_ends_with_the_word_itself() -> None:
    assert await encode_bad_words(["none", "un"], encode=encode) == ((5, 7), (8,), (9,))


async def test_a_bad_word_without_tokens_is_refused() -> None:
    async def nothing(text: str) -> list[int]:
        return []

    with pytest.raises(InvalidRequestError) as caught:
        await encode_bad_words(["x"], encode=nothing)
    assert caught.value.param == "bad_words"


def progress_of(**params: Any) -> RequestProgress:
    progress = RequestProgress(
        request_id="r", core_id="r#0", params=SamplingParams(**params), arrival_time=0.0, notify=lambda: None
    )
    progress.set_prompt(
        None,
        token_ids=np.array([1], dtype=np.uint32),
        decoder=ByteTokenizer().incremental_decoder(skip_special_tokens=True),
        eos_token_ids=frozenset({258}),
    )
    return progress


def test_outputs_come_at_the_first_every_nth_and_the_last_token() -> None:
    progress = progress_of(stream_interval=3, max_tokens=None, output_kind=RequestOutputKind.DELTA)
    sizes = []
    for number in range(9):
        reason = "length" if number == 8 else None
        progress.apply(TokenDelta(request_id="r#0", new_token_ids=(97,), finish_reason=reason), now=0.0)
        output = progress.take()
        sizes.append(0 if output is None else len(output.outputs[0].token_ids))
    assert sizes == [1, 0, 0, 3, 0, 0, 3, 0, 2]


def test_the_last_token_of_a_complete_grammar_is_shown() -> None:
    progress = progress_of()
    progress.apply(TokenDelta(request_id="r#0", new_token_ids=(97,), finish_reason="stop"), now=0.0)
    output = progress.take()
    assert output is not None
    assert (output.outputs[0].text, output.outputs[0].stop_reason) == ("a", None)


def test_a_stop_token_is_not_shown() -> None:
    progress = progress_of(stop_token_ids=[98])
    progress.apply(TokenDelta(request_id="r#0", new_token_ids=(97, 98), finish_reason="stop", stop_reason=98), now=0.0)
    output = progress.take()
    assert output is not None
    assert (output.outputs[0].text, output.outputs[0].stop_reason) == ("a", 98)
