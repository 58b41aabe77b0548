"""What goes into the tokenization service and what comes out."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from headrace.tokenization.chat_messages import Message
from headrace.tokenization.tokenizer import TokenIds

_NUM_CHARS_MEASURED = 64 * 1024


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A chat for the model's template. Templates write the special tokens themselves, so encoding adds none."""

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, object]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template_kwargs: Mapping[str, object] | None = None


class Encoded(msgspec.Struct, frozen=True, eq=False):
    """The token ids of a prompt, where they came from and what they took."""

    token_ids: TokenIds
    source: str
    """`cache`, `flight` (somebody else's encoding of the same text), `in_place` (on the event loop), `local` (the same,
    because everything else was full), or the lane: `short`, `bulk` or `process`."""
    queue_wait_s: float
    encode_s: float
    num_resumed_chars: int = 0
    """How much of the text was known from an earlier one that begins alike."""


@dataclass(frozen=True, slots=True)
class Saturated:
    """Nothing was encoded, since the lane that the text belongs to has too much to do and the caller would not wait."""

    lane: str
    num_queued: int
    num_queued_bytes: int


def min_num_tokens(text: str, *, max_token_bytes: int) -> int:
    """No tokenizer whose longest token has `max_token_bytes` makes fewer tokens of `text`. Quick for any text."""
    is_measured = not text.isascii() and len(text) <= _NUM_CHARS_MEASURED
    num_bytes = len(text.encode(errors="surrogatepass")) if is_measured else len(text)
    return -(-num_bytes // max_token_bytes)


def text_num_bytes(text: str) -> int:
    """The UTF-8 size of `text`, or, where counting would take the event loop long, about its size in memory."""
    if text.isascii():
        return len(text)
    return len(text.encode(errors="surrogatepass")) if len(text) <= _NUM_CHARS_MEASURED else sys.getsizeof(text)
