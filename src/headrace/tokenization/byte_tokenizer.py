"""A tokenizer without a vocabulary file: one token for each UTF-8 byte, and three special tokens. For tests and
examples; exact by construction."""

import hashlib
import re
from collections.abc import Sequence

from headrace.tokenization.chat_template import ChatTemplate
from headrace.tokenization.incremental import bytes_decoders
from headrace.tokenization.surrogates import refuse_lone_surrogates
from headrace.tokenization.tokenizer import IncrementalDecoder, TokenIds, pack_token_ids

_NUM_BYTES = 256
_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

CHATML = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\n' + (message['content'] or '') + '<|im_end|>\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)


class ByteTokenizer:
    """Ids 0 to 255 are bytes; 256 is `<|endoftext|>`, 257 `<|im_start|>`, 258 `<|im_end|>`, which ends a chat turn.

    Adds no special tokens of its own, whatever `add_special_tokens` says.
    """

    name = "bytes"
    vocab_size = _NUM_BYTES + len(_SPECIALS)
    eos_token_id = _NUM_BYTES + _SPECIALS.index("<|im_end|>")
    special_token_ids = frozenset(range(_NUM_BYTES, _NUM_BYTES + len(_SPECIALS)))
    max_token_bytes = max(map(len, _SPECIALS))

    def __init__(self, *, chat_template: str = CHATML) -> None:
        self.chat_template = ChatTemplate(chat_template, special_tokens={"eos_token": "<|im_end|>"})
        self.fingerprint = hashlib.sha256(b"bytes\0" + chat_template.encode()).hexdigest()
        bytes_only = [bytes((byte,)) for byte in range(_NUM_BYTES)]
        table = [*bytes_only, *(special.encode() for special in _SPECIALS)]
        without = [*bytes_only, *(b"" for _ in _SPECIALS)]
        self._decoders = {False: bytes_decoders(table), True: bytes_decoders(without)}
        self._special_ids = {special: _NUM_BYTES + index for index, special in enumerate(_SPECIALS)}
        self._split_at_specials = re.compile(f"({'|'.join(map(re.escape, _SPECIALS))})").split

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[TokenIds]:  # noqa: ARG002
        return [self._encode(text) for text in texts]

    def _encode(self, text: str) -> TokenIds:
        refuse_lone_surrogates(text)
        token_ids: list[int] = []
        for piece in self._split_at_specials(text):
            special_id = self._special_ids.get(piece)
            token_ids += piece.encode() if special_id is None else (special_id,)
        return pack_token_ids(token_ids)

    def decode(self, token_ids: Sequence[int] | TokenIds, *, skip_special_tokens: bool) -> str:
        decoder = self.incremental_decoder(skip_special_tokens=skip_special_tokens)
        return decoder.push([int(token_id) for token_id in token_ids]) + decoder.finish()

    def token_strings(self, token_ids: Sequence[int] | TokenIds) -> list[str]:
        """Bytes as `<0x41>`, special tokens as themselves."""
        return [self._token_string(int(token_id)) for token_id in token_ids]

    def _token_string(self, token_id: int) -> str:
        if 0 <= token_id < _NUM_BYTES:
            return f"<0x{token_id:02X}>"
        return _SPECIALS[token_id - _NUM_BYTES] if token_id in self.special_token_ids else ""

    def incremental_decoder(self, *, skip_special_tokens: bool) -> IncrementalDecoder:
        return self._decoders[skip_special_tokens]()

    def __repr__(self) -> str:
        return f"ByteTokenizer(vocab_size={self.vocab_size})"
