"""Tokenizers from tiktoken's rank files: byte-level merges by rank; the pattern and special tokens are not in the file.

The tiktoken library is the reference for them. It finds special tokens in the text, and adds none of its own.
"""

import base64
import binascii
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import tiktoken

from headrace.errors import TokenizationError
from headrace.tokenization.chat_template import ChatTemplate
from headrace.tokenization.incremental import bytes_decoders
from headrace.tokenization.segments import CL100K_REGEX, O200K_REGEX, tiktoken_cut_rules
from headrace.tokenization.surrogates import refuse_lone_surrogates
from headrace.tokenization.tokenizer import IncrementalDecoder, TokenIds, Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEncoding:
    """What a rank file leaves out."""

    pattern: str
    special_tokens: Mapping[str, int]


_FIM = {"<|fim_prefix|>": 100258, "<|fim_middle|>": 100259, "<|fim_suffix|>": 100260}

KNOWN_ENCODINGS: Mapping[str, RankEncoding] = MappingProxyType(
    {
        "cl100k_base": RankEncoding(
            pattern=CL100K_REGEX, special_tokens={"<|endoftext|>": 100257, **_FIM, "<|endofprompt|>": 100276}
        ),
        "o200k_base": RankEncoding(
            pattern=O200K_REGEX, special_tokens={"<|endoftext|>": 199999, "<|endofprompt|>": 200018}
        ),
    }
)
"""Published encodings by the name of their file."""


class TiktokenTokenizer:
    """A `Tokenizer` over ranks. Thread-safe; encoding releases the GIL."""

    def __init__(
        self, file: Path, encoding: RankEncoding, *, name: str, chat_template: ChatTemplate | None = None
    ) -> None:
        """Raises TokenizationError naming `name` when the file or the pattern cannot be read."""
        ranks = _read_ranks(file)
        self.name = name
        self.chat_template = chat_template
        self._file = file
        self._encoding = encoding
        self._special_tokens = dict(encoding.special_tokens)
        self._library = _build(name, encoding, ranks)
        self._table = _table(ranks, self._special_tokens)
        self.vocab_size = len(self._table)
        self.special_token_ids = frozenset(self._special_tokens.values())
        skipped = self.special_token_ids
        without = [b"" if token_id in skipped else token for token_id, token in enumerate(self._table)]
        self._decoders = {False: bytes_decoders(self._table), True: bytes_decoders(without)}
        self.eos_token_id = self._special_tokens.get("<|endoftext|>")
        self.max_token_bytes = max(map(len, self._table))
        self.added_tokens = tuple(self._special_tokens)
        self.cut_rules = tiktoken_cut_rules(encoding.pattern, self.added_tokens)
        self.fingerprint = _fingerprint(ranks, encoding, chat_template)

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[TokenIds]:  # noqa: ARG002
        return [self._encode(text) for text in texts]

    def _encode(self, text: str) -> TokenIds:
        refuse_lone_surrogates(text)  # the library would replace them
        token_ids = self._library.encode_to_numpy(text, allowed_special="all")
        packed: TokenIds = np.asarray(token_ids, np.uint32)
        packed.flags.writeable = False
        return packed

    def decode(self, token_ids: Sequence[int] | TokenIds, *, skip_special_tokens: bool) -> str:
        decoder = self.incremental_decoder(skip_special_tokens=skip_special_tokens)
        return decoder.push([int(token_id) for token_id in token_ids]) + decoder.finish()

    def token_strings(self, token_ids: Sequence[int] | TokenIds) -> list[str]:
        """Tokens as text; bytes that are not UTF-8 as `\\xff`."""
        known = (self._table[i] if 0 <= i < self.vocab_size else b"" for i in map(int, token_ids))
        return [token.decode(errors="backslashreplace") for token in known]

    def incremental_decoder(self, *, skip_special_tokens: bool) -> IncrementalDecoder:
        return self._decoders[skip_special_tokens]()

    def accelerated(self) -> Tokenizer:
        """A faster encoder for the same rules, not yet compared with this one. Raises TokenizationError."""
        from headrace.tokenization import fastokens_tokenizer

        return fastokens_tokenizer.from_ranks(
            self._file, pattern=self._encoding.pattern, special_tokens=self._special_tokens, reference=self
        )

    def __repr__(self) -> str:
        return f"TiktokenTokenizer({self.name!r}, vocab_size={self.vocab_size}, fingerprint={self.fingerprint[:12]})"


def load_tiktoken(
    path: str | Path, *, pattern: str | None = None, special_tokens: Mapping[str, int] | None = None
) -> TiktokenTokenizer:
    """The tokenizer of a rank file.

    `pattern` and `special_tokens` may be left out for a published file of its own name, such as `o200k_base.tiktoken`.
    Raises TokenizationError naming the path.
    """
    file = Path(path)
    known = KNOWN_ENCODINGS.get(file.stem)
    if pattern is None and known is None:
        names = ", ".join(KNOWN_ENCODINGS)
        raise TokenizationError(
            f"the rank file {file} has no pattern; give one, or use a file of a known name: {names}"
        )
    encoding = RankEncoding(
        pattern=pattern if pattern is not None else known.pattern if known else "",
        special_tokens=special_tokens if special_tokens is not None else known.special_tokens if known else {},
    )
    return TiktokenTokenizer(file, encoding, name=str(path))


def _read_ranks(file: Path) -> dict[bytes, int]:
    try:
        lines = file.read_bytes().splitlines()
        pairs = (line.split() for line in lines if line)
        return {base64.b64decode(token, validate=True): int(rank) for token, rank in pairs}
    except OSError as error:
        raise TokenizationError(f"cannot read the tokenizer {file}: {error.strerror}") from error
    except (ValueError, binascii.Error) as error:
        raise TokenizationError(f"{file} is not a tiktoken rank file: {error}") from error


def _build(name: str, encoding: RankEncoding, ranks: dict[bytes, int]) -> tiktoken.Encoding:
    try:
        return tiktoken.Encoding(
            name, pat_str=encoding.pattern, mergeable_ranks=ranks, special_tokens=dict(encoding.special_tokens)
        )
    except Exception as error:
        raise TokenizationError(f"the tiktoken library cannot read {name}: {error}") from error


def _table(ranks: Mapping[bytes, int], special_tokens: Mapping[str, int]) -> list[bytes]:
    by_id = {rank: token for token, rank in ranks.items()}
    by_id |= {token_id: token.encode() for token, token_id in special_tokens.items()}
    return [by_id.get(token_id, b"") for token_id in range(max(by_id, default=-1) + 1)]


def _fingerprint(ranks: Mapping[bytes, int], encoding: RankEncoding, template: ChatTemplate | None) -> str:
    digest = hashlib.sha256(b"tiktoken\0")
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        digest.update(b"%d:%d:" % (rank, len(token)) + token)
    identity = (encoding.pattern, sorted(encoding.special_tokens.items()))
    written = None if template is None else (template.sources, template.special_tokens)
    digest.update(repr((identity, written)).encode())
    return digest.hexdigest()
