"""A call's prompt as the router takes it: in blocks of tokens, or of its text where there are no tokens.

Each block size is hashed once, when it is first asked for.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.gateway.identify import Call
from headrace.gateway.prefix_index import ChainHashers, digest_of
from headrace.gateway.prompt.tokens import PromptCount
from headrace.gateway.router import HEAD_TOKENS, PromptChain

_TEXT_WORDS = 16
"""64 bytes a block of text, about as much as 16 tokens."""
_BYTES_PER_WORD = 4
_MAX_PROMPTS = 16
"""Of one call; what more there is decides nothing."""


class PromptBlocks:
    """See the module; what `headrace.gateway.router.Prompt` asks for."""

    def __init__(
        self, call: Call, count: PromptCount, *, hashers: ChainHashers, session_header: bytes, hashes_text: bool
    ) -> None:
        self.session_key = _session_key(call, header=session_header)
        self._hashers = hashers
        self._salt = _text_of(call.fields.cache_salt)
        self._adapter = call.model if call.card.parent is not None else ""
        self._ids: Sequence[npt.NDArray[np.uint32]] = ()
        self.is_text = False
        if call.route.traits.is_generating:
            self._ids = [_truncated(ids, call) for ids in count.token_ids[:_MAX_PROMPTS]]
            if not count.token_ids and hashes_text:
                self.is_text = True
                self._ids = [_words_of(call)]
                self._adapter = f"text of {call.model}"
        self.num_tokens = max(1, sum(map(len, self._ids)))
        self._chains: dict[int, Sequence[PromptChain]] = {}

    def chains(self, block_size: int) -> Sequence[PromptChain]:
        if self.is_text:
            block_size = _TEXT_WORDS
        chains = self._chains.get(block_size)
        if chains is None:
            chains = self._chains[block_size] = [self._chain(ids, block_size) for ids in self._ids]
        return chains

    def trace_ids(self) -> list[int]:
        """A hash for each 512 tokens of a single prompt of tokens, as traces have it; empty for others."""
        if self.is_text or len(self._ids) != 1 or not self._chains:
            return []
        (found,) = next(iter(self._chains.values()))
        step = max(1, HEAD_TOKENS // found.block_size)
        ids = found.chain[step - 1 :: step].tolist()
        return ids if len(found.chain) % step == 0 else [*ids, found.chain[-1]]

    def _chain(self, ids: npt.NDArray[np.uint32], block_size: int) -> PromptChain:
        chain = self._hashers.of(block_size).chain(ids, adapter=self._adapter, salt=self._salt)
        return PromptChain(chain, max(1, len(ids)), block_size)

    def __repr__(self) -> str:
        what = "words of text" if self.is_text else "tokens"
        return f"PromptBlocks({self.num_tokens} {what}, num_prompts={len(self._ids)})"


def _session_key(call: Call, *, header: bytes) -> int | None:
    if session := call.request.header(header):
        return digest_of("session " + session.decode("latin-1"))
    user = _text_of(call.fields.user)
    return digest_of("user " + user) if user else None


def _text_of(raw: msgspec.Raw) -> str | None:
    """The JSON text, if it is one; what else stands there is the engine's to refuse."""
    data = bytes(raw)
    return msgspec.json.decode(data, type=str) if data.startswith(b'"') else None


def _truncated(ids: npt.NDArray[np.uint32], call: Call) -> npt.NDArray[np.uint32]:
    """What the engine keeps of a prompt that the call has shortened: its end."""
    kept = call.fields.truncate_prompt_tokens
    if kept is not None and kept < 0:
        kept = call.card.max_model_len
    return ids if kept is None or kept == 0 or kept >= len(ids) else ids[-kept:]


def _words_of(call: Call) -> npt.NDArray[np.uint32]:
    raw = b"".join([bytes(getattr(call.fields, name)) for name in call.route.traits.text_fields])
    return np.frombuffer(raw, dtype=np.uint32, count=len(raw) // _BYTES_PER_WORD)
