"""The accelerated encoder: fastokens, with everything but encoding left to the reference tokenizer it stands for.

Whether it gives the reference's ids is not for it to say: `admission` finds out before it serves anybody.
"""

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from headrace.errors import TokenizationError
from headrace.tokenization.chat_template import ChatTemplate
from headrace.tokenization.surrogates import refuse_lone_surrogates
from headrace.tokenization.tokenizer import IncrementalDecoder, TokenIds, Tokenizer

if TYPE_CHECKING:
    import fastokens

EncodeOne: TypeAlias = Callable[[str, bool], TokenIds]
"""The ids of one text, and whether special tokens are added to it."""

_LOG = logging.getLogger(__name__)
MAX_SEPARATE = 8
"""So few texts are encoded one by one, in this thread: waking the library's threads for them takes longer."""


class FastokensTokenizer:
    """A `Tokenizer` that encodes with fastokens. Thread-safe: truncation and padding stay off."""

    def __init__(self, library: "fastokens.Tokenizer", *, reference: Tokenizer) -> None:
        library.no_truncation()
        library.no_padding()
        self._encode = library.encode_batch_flat
        self._may_spread: bool | None = None
        """Whether many texts go to the library's threads; None until the first ones were compared."""
        self._reference = reference
        self.name = reference.name
        self.fingerprint = reference.fingerprint
        self.vocab_size = reference.vocab_size
        self.eos_token_id = reference.eos_token_id
        self.max_token_bytes = reference.max_token_bytes
        self.special_token_ids = reference.special_token_ids
        self.chat_template: ChatTemplate | None = reference.chat_template

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[TokenIds]:
        if len(texts) <= MAX_SEPARATE or self._may_spread is False:
            return [self.encode_one(text, add_special_tokens) for text in texts]
        if self._may_spread is None:
            return self._compare_spread(texts, add_special_tokens)
        return self._encode_spread(texts, add_special_tokens)

    def _compare_spread(self, texts: Sequence[str], add_special_tokens: bool) -> list[TokenIds]:
        """Not before it is wanted, since the threads take 17 MB each. What goes out was encoded as it was admitted."""
        one_by_one = [self.encode_one(text, add_special_tokens) for text in texts]
        spread = self._encode_spread(texts, add_special_tokens)
        self._may_spread = all(map(np.array_equal, one_by_one, spread))
        if not self._may_spread:
            _LOG.error("%s: fastokens gives other ids for many texts at once; each goes alone from now on", self.name)
        return one_by_one

    def _encode_spread(self, texts: Sequence[str], add_special_tokens: bool) -> list[TokenIds]:
        try:
            packed, offsets = self._encode(list(texts), add_special_tokens)
        except UnicodeEncodeError:
            for text in texts:
                refuse_lone_surrogates(text)
            raise
        token_ids = np.frombuffer(packed, np.uint32)  # read-only, since bytes are
        ends: list[int] = np.frombuffer(offsets, np.uint64).tolist()
        return [token_ids[begin:end] for begin, end in itertools.pairwise(ends)]

    def encode_one(self, text: str, add_special_tokens: bool) -> TokenIds:
        """`encode_batch` of one text, at half the cost around the library's call, which short texts notice."""
        try:
            return np.frombuffer(self._encode([text], add_special_tokens)[0], np.uint32)
        except UnicodeEncodeError:
            refuse_lone_surrogates(text)
            raise

    def decode(self, token_ids: Sequence[int] | TokenIds, *, skip_special_tokens: bool) -> str:
        return self._reference.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def token_strings(self, token_ids: Sequence[int] | TokenIds) -> list[str]:
        return self._reference.token_strings(token_ids)

    def incremental_decoder(self, *, skip_special_tokens: bool) -> IncrementalDecoder:
        return self._reference.incremental_decoder(skip_special_tokens=skip_special_tokens)

    def __repr__(self) -> str:
        return f"FastokensTokenizer({self.name!r}, fingerprint={self.fingerprint[:12]})"


def one_by_one(tokenizer: Tokenizer) -> EncodeOne:
    """The quickest way to encode single texts with `tokenizer`."""
    if isinstance(tokenizer, FastokensTokenizer):
        return tokenizer.encode_one
    return lambda text, adds: tokenizer.encode_batch((text,), add_special_tokens=adds)[0]


def from_definition(tokenizer_json: bytes, *, reference: Tokenizer) -> FastokensTokenizer:
    """Raises TokenizationError when fastokens is not installed or does not support the tokenizer."""
    library = _library()
    try:
        return FastokensTokenizer(library.from_json_str(tokenizer_json.decode()), reference=reference)
    except Exception as error:
        raise TokenizationError(f"fastokens does not support {reference.name}: {error}") from error


def from_ranks(
    file: Path, *, pattern: str, special_tokens: Mapping[str, int], reference: Tokenizer
) -> FastokensTokenizer:
    """For a tiktoken rank file; raises as `from_definition`."""
    library = _library()
    try:
        built = library.from_tiktoken(str(file), pattern=pattern, special_tokens=dict(special_tokens))
        return FastokensTokenizer(built, reference=reference)
    except Exception as error:
        raise TokenizationError(f"fastokens does not support {reference.name}: {error}") from error


def _library() -> "type[fastokens.Tokenizer]":
    try:
        import fastokens
    except ImportError as error:
        raise TokenizationError("fastokens is not installed; pip install fastokens brings it") from error
    tokenizer: type[fastokens.Tokenizer] = fastokens.Tokenizer
    return tokenizer
