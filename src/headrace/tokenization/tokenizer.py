"""What every tokenizer is to the rest of Headrace: the seam behind which libraries may differ.

Token ids are one-dimensional numpy arrays of unsigned 32-bit integers, shared by everybody who asked for the same text
and therefore never written to.
"""

from array import array
from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from headrace.tokenization.chat_template import ChatTemplate

TokenIds: TypeAlias = npt.NDArray[np.uint32]
"""Token ids in order, shape (num_tokens,), read-only."""


class IncrementalDecoder(Protocol):
    """Turns the tokens of one stream into text as they come. Not thread-safe; one per stream."""

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that `token_ids` add and that no later token can change; never half a character. May be empty."""
        ...

    def finish(self) -> str:
        """What was held back, so that all pieces joined equal the decoding of the whole. Call it once, at the end."""
        ...


class Tokenizer(Protocol):
    """Text to token ids and back, without state between calls. Every method is thread-safe and may block.

    Encoding never truncates and never pads. Where the text holds special tokens in their written form they become
    their ids, as the reference tokenizer does it.
    """

    @property
    def name(self) -> str:
        """For logs: where it was loaded from."""
        ...

    @property
    def fingerprint(self) -> str:
        """Hexadecimal; equal exactly when vocabulary, rules and chat template are equal."""
        ...

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        ...

    @property
    def eos_token_id(self) -> int | None: ...

    @property
    def max_token_bytes(self) -> int:
        """No token stands for more UTF-8 bytes than this, so a text has `ceil(num_bytes / max_token_bytes)` or more."""
        ...

    @property
    def special_token_ids(self) -> frozenset[int]: ...

    @property
    def chat_template(self) -> ChatTemplate | None: ...

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[TokenIds]:
        """One array for each text, in order. Raises InvalidRequestError for a text that is not valid Unicode."""
        ...

    def decode(self, token_ids: Sequence[int] | TokenIds, *, skip_special_tokens: bool) -> str:
        """The text of `token_ids`; ids outside the vocabulary add nothing, broken UTF-8 becomes U+FFFD."""
        ...

    def token_strings(self, token_ids: Sequence[int] | TokenIds) -> list[str]:
        """Each token as the vocabulary writes it; the empty string for an id outside the vocabulary."""
        ...

    def incremental_decoder(self, *, skip_special_tokens: bool) -> IncrementalDecoder:
        """A fresh decoder for one stream."""
        ...


def pack_token_ids(token_ids: Sequence[int]) -> TokenIds:
    """`token_ids` as a read-only array. Goes through `array`, which is four times as fast as numpy from a list."""
    packed = np.frombuffer(array("I", token_ids), dtype=np.uint32) if token_ids else np.empty(0, dtype=np.uint32)
    packed.flags.writeable = False
    return packed
