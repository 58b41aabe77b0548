"""The text of answers: a decoder that continues where the prompt ended, and the texts of single tokens."""

from collections.abc import Sequence

from headrace.engine.sampling_params import SamplingParams
from headrace.tokenization.incremental import BytesDecoder
from headrace.tokenization.tokenizer import IncrementalDecoder, TokenIds, Tokenizer

_MAX_TOKENS_LOOKED_AT = 8


def open_decoder(tokenizer: Tokenizer, params: SamplingParams, prompt_token_ids: TokenIds) -> IncrementalDecoder | None:
    """For one answer to that prompt; None when no text is wanted."""
    if not params.detokenize:
        return None
    decoder = tokenizer.incremental_decoder(skip_special_tokens=params.skip_special_tokens)
    if not isinstance(decoder, BytesDecoder):  # to bytes it is all the same where a text begins
        decoder = _continue_after(tokenizer, prompt_token_ids, skip_special_tokens=params.skip_special_tokens)
    if params.skip_special_tokens or params.spaces_between_special_tokens:
        return decoder
    return _JoinedSpecials(decoder, tokenizer)


def _continue_after(
    tokenizer: Tokenizer, prompt_token_ids: TokenIds, *, skip_special_tokens: bool
) -> IncrementalDecoder:
    """A decoder that does not take the answer's first token for the beginning of a text, where some rules drop a space.

    It has decoded the last token of the prompt that is text by itself. Half a character at the prompt's end is left
    alone, for its rest would be taken for the answer's.
    """
    for token_id in prompt_token_ids[: -_MAX_TOKENS_LOOKED_AT - 1 : -1].tolist():
        probe = tokenizer.incremental_decoder(skip_special_tokens=skip_special_tokens)
        if probe.push((token_id,)) and not probe.finish():
            decoder = tokenizer.incremental_decoder(skip_special_tokens=skip_special_tokens)
            decoder.push((token_id,))
            return decoder
    return tokenizer.incremental_decoder(skip_special_tokens=skip_special_tokens)


class _JoinedSpecials:
    """Writes a special token that follows another one without the space that some rules put between tokens."""

    __slots__ = ("_decoder", "_follows_special", "_tokenizer")

    def __init__(self, decoder: IncrementalDecoder, tokenizer: Tokenizer) -> None:
        self._decoder = decoder
        self._tokenizer = tokenizer
        self._follows_special = False

    def push(self, token_ids: Sequence[int]) -> str:
        return "".join(self._push_one(token_id) for token_id in token_ids)

    def finish(self) -> str:
        return self._decoder.finish()

    def _push_one(self, token_id: int) -> str:
        text = self._decoder.push((token_id,))
        is_special = token_id in self._tokenizer.special_token_ids
        joins, self._follows_special = is_special and self._follows_special, is_special
        return self._tokenizer.token_strings((token_id,))[0] if joins and text else text


class TokenTexts:
    """Each token's text by itself, decoded once. At most as many as the vocabulary has."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._texts: dict[int, str] = {}

    def __repr__(self) -> str:
        return f"<TokenTexts {len(self._texts)} of {self._tokenizer.name}>"

    def __call__(self, token_id: int) -> str:
        text = self._texts.get(token_id)
        if text is None:
            text = self._texts[token_id] = self._tokenizer.decode((token_id,), skip_special_tokens=False)
        return text
