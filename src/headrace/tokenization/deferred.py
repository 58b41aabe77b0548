"""A tokenizer that is known by what an examiner said of it, and is made here only when its rules are really needed."""

import threading
from collections.abc import Sequence

from headrace.tokenization.definition import Definition
from headrace.tokenization.examiner.wire import Facts
from headrace.tokenization.huggingface import HuggingFaceTokenizer
from headrace.tokenization.tokenizer import IncrementalDecoder, TokenIds, Tokenizer


class DeferredTokenizer:
    """A `Tokenizer`, equal to the one that its definition makes. Thread-safe.

    The first call that needs the vocabulary makes it, in the calling thread, which holds the interpreter for as long as
    that takes: see `is_at_hand` before such a call is made where nothing may wait.
    """

    def __init__(self, definition: Definition, facts: Facts) -> None:
        """Raises TokenizationError where the chat template is not valid."""
        self._definition = definition
        self.name = definition.name
        self.chat_template = definition.chat_template()
        self.fingerprint = facts.fingerprint
        self.vocab_size = facts.vocab_size
        self.eos_token_id = facts.eos_token_id
        self.max_token_bytes = facts.max_token_bytes
        self.special_token_ids = facts.special_token_ids
        self.added_tokens = facts.added_tokens
        self.cut_rules = facts.rules.made()
        self._lock = threading.Lock()
        self._made: HuggingFaceTokenizer | None = None

    @property
    def definition(self) -> Definition:
        return self._definition

    @property
    def is_at_hand(self) -> bool:
        return self._made is not None

    def let_go(self) -> None:
        """Give back what was made; the next call that needs it makes it again."""
        with self._lock:
            self._made = None

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[TokenIds]:
        return self._make().encode_batch(texts, add_special_tokens=add_special_tokens)

    def decode(self, token_ids: Sequence[int] | TokenIds, *, skip_special_tokens: bool) -> str:
        return self._make().decode(token_ids, skip_special_tokens=skip_special_tokens)

    def token_strings(self, token_ids: Sequence[int] | TokenIds) -> list[str]:
        return self._make().token_strings(token_ids)

    def incremental_decoder(self, *, skip_special_tokens: bool) -> IncrementalDecoder:
        return self._make().incremental_decoder(skip_special_tokens=skip_special_tokens)

    def accelerated(self) -> Tokenizer:
        """A faster encoder for the same rules. Raises TokenizationError."""
        from headrace.tokenization import fastokens_tokenizer

        return fastokens_tokenizer.from_definition(self._definition.tokenizer_json, reference=self)

    def _make(self) -> HuggingFaceTokenizer:
        with self._lock:
            if self._made is None:
                self._made = self._definition.load()
            return self._made

    def __repr__(self) -> str:
        state = "at hand" if self.is_at_hand else "not made"
        return f"DeferredTokenizer({self.name!r}, {state}, fingerprint={self.fingerprint[:12]})"


def is_at_hand(tokenizer: Tokenizer) -> bool:
    """Whether a call of `tokenizer` takes no longer than what it is asked for."""
    return not isinstance(tokenizer, DeferredTokenizer) or tokenizer.is_at_hand
