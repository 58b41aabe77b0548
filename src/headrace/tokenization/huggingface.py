"""The reference tokenizer: a `tokenizer.json` in Hugging Face's `tokenizers` library.

Only the batch calls of the library are used, because only they release the GIL, and truncation and padding stay off,
because they change the instance that all threads share.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from headrace.errors import TokenizationError
from headrace.tokenization import token_bytes
from headrace.tokenization.chat_template import ChatTemplate
from headrace.tokenization.incremental import PiecesDecoder, WindowDecoder, bytes_decoders
from headrace.tokenization.segments import CutRules, cut_rules
from headrace.tokenization.surrogates import refuse_lone_surrogates
from headrace.tokenization.tokenizer import IncrementalDecoder, TokenIds, Tokenizer, pack_token_ids

if TYPE_CHECKING:
    import tokenizers

__all__ = ["HuggingFaceTokenizer", "refuse_lone_surrogates"]


class HuggingFaceTokenizer:
    """A `Tokenizer` over one `tokenizer.json`. Thread-safe."""

    def __init__(
        self,
        tokenizer_json: bytes,
        *,
        name: str,
        special_tokens: Mapping[str, str] | None = None,
        chat_template: ChatTemplate | None = None,
    ) -> None:
        """`special_tokens` are the named ones of the tokenizer's configuration, such as `eos_token`.

        Raises TokenizationError naming `name` when the library cannot read the file.
        """
        self.name = name
        self.chat_template = chat_template
        spec = _parse(tokenizer_json, name=name)
        self._library = _build(tokenizer_json, name=name)
        self._tokens = _tokens_by_id(self._library)
        self.vocab_size = len(self._tokens)
        self.fingerprint = _fingerprint(spec, special_tokens or {}, chat_template)
        self.eos_token_id = self._named_id((special_tokens or {}).get("eos_token"))
        self.special_token_ids = _special_ids(self._library, self._tokens)
        self.max_token_bytes = token_bytes.max_token_bytes(spec, self._tokens)
        self.cut_rules: CutRules = cut_rules(spec)
        self.added_tokens = tuple(added["content"] for added in spec["added_tokens"])
        self._definition = tokenizer_json
        self._decoder_makers = _decoder_makers(spec, self._tokens, skipped=self.special_token_ids, decode=self.decode)

    def _named_id(self, token: str | None) -> int | None:
        return None if token is None else self._library.token_to_id(token)

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[TokenIds]:
        for text in texts:
            refuse_lone_surrogates(text)
        encodings = self._library.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        return [pack_token_ids(encoding.ids) for encoding in encodings]

    def decode(self, token_ids: Sequence[int] | TokenIds, *, skip_special_tokens: bool) -> str:
        known = [token_id for token_id in _as_list(token_ids) if 0 <= token_id < self.vocab_size]
        return str(self._library.decode_batch([known], skip_special_tokens=skip_special_tokens)[0])

    def token_strings(self, token_ids: Sequence[int] | TokenIds) -> list[str]:
        return [self._tokens[i] if 0 <= i < self.vocab_size else "" for i in _as_list(token_ids)]

    def incremental_decoder(self, *, skip_special_tokens: bool) -> IncrementalDecoder:
        return self._decoder_makers[skip_special_tokens]()

    def accelerated(self) -> Tokenizer:
        """A faster encoder for the same rules, not yet compared with this one. Raises TokenizationError."""
        from headrace.tokenization import fastokens_tokenizer

        return fastokens_tokenizer.from_definition(self._definition, reference=self)

    def __repr__(self) -> str:
        return f"HuggingFaceTokenizer({self.name!r}, vocab_size={self.vocab_size}, fingerprint={self.fingerprint[:12]})"


def _parse(tokenizer_json: bytes, *, name: str) -> token_bytes.Spec:
    try:
        spec: object = msgspec.json.decode(tokenizer_json)
    except msgspec.DecodeError as error:
        raise TokenizationError(f"{name} is not JSON: {error}") from error
    if not isinstance(spec, dict) or not isinstance(spec.get("model"), dict):
        raise TokenizationError(f"{name} is not a tokenizer.json: it has no 'model' object")
    spec["added_tokens"] = spec.get("added_tokens") or []
    spec["truncation"] = spec["padding"] = None
    return spec


def _build(tokenizer_json: bytes, *, name: str) -> "tokenizers.Tokenizer":
    import tokenizers  # 7 MB, which a gateway does without where an examiner has the reference

    try:
        library = tokenizers.Tokenizer.from_buffer(tokenizer_json)
    except Exception as error:
        raise TokenizationError(f"the tokenizers library cannot read {name}: {error}") from error
    library.no_truncation()
    library.no_padding()
    return library


def _tokens_by_id(library: "tokenizers.Tokenizer") -> list[str]:
    """Every token as the vocabulary writes it; the empty string where an id is not used."""
    vocabulary: Mapping[str, int] = library.get_vocab(with_added_tokens=True)
    tokens = [""] * (max(vocabulary.values(), default=-1) + 1)
    for token, token_id in vocabulary.items():
        tokens[token_id] = token
    return tokens


def _special_ids(library: "tokenizers.Tokenizer", tokens: Sequence[str]) -> frozenset[int]:
    added = library.get_added_tokens_decoder()
    return frozenset(token_id for token_id, token in added.items() if token.special and token_id < len(tokens))


def _fingerprint(spec: token_bytes.Spec, special_tokens: Mapping[str, str], template: ChatTemplate | None) -> str:
    """Independent of the file's spacing and order of keys, and of settings that are switched off here."""
    identity = (spec, special_tokens, None if template is None else (template.sources, template.special_tokens))
    return hashlib.sha256(msgspec.json.encode(identity, order="sorted")).hexdigest()


def _decoder_makers(
    spec: token_bytes.Spec, tokens: Sequence[str], *, skipped: frozenset[int], decode: Callable[..., str]
) -> dict[bool, Callable[[], IncrementalDecoder]]:
    """What makes a decoder that keeps special tokens (False) and one that skips them (True)."""
    if token_bytes.is_byte_level(spec):
        table = token_bytes.byte_level_table(tokens)
        without = [b"" if token_id in skipped else token for token_id, token in enumerate(table)]
        return {False: bytes_decoders(table), True: bytes_decoders(without)}
    if token_bytes.is_sentencepiece(spec):
        make = partial(PiecesDecoder, strips_leading_space=token_bytes.strips_leading_space(spec))
        pieces = [_piece(token) for token in tokens]
        without_special = [None if token_id in skipped else piece for token_id, piece in enumerate(pieces)]
        return {False: partial(make, pieces), True: partial(make, without_special)}
    return {skips: partial(WindowDecoder, partial(decode, skip_special_tokens=skips)) for skips in (False, True)}


def _piece(token: str) -> str | int:
    byte = token_bytes.raw_byte(token)
    return token.replace(token_bytes.SPACE_MARK, " ") if byte is None else byte


def _as_list(token_ids: Sequence[int] | TokenIds) -> list[int]:
    return token_ids.tolist() if isinstance(token_ids, np.ndarray) else list(token_ids)
