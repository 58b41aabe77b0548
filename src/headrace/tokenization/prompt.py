"""What goes into the tokenization service and what comes out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.tokenization.chat_messages import Message
from headrace.tokenization.tokenizer import TokenIds

_NUM_CHARS_MEASURED = 64 * 1024
_MAX_BYTES_PER_CHAR = 4


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A chat for the model's template. Templates write the special tokens themselves, so encoding adds none."""

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, object]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template_kwargs: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True)
class Encoded:
    """The token ids of a prompt, where they came from and what they took."""

    token_ids: TokenIds
    source: str
    """`cache`, `flight` (somebody else's encoding of the same text), or the lane: `short` or `bulk`."""
    queue_wait_s: float
    encode_s: float


def text_num_bytes(text: str) -> int:
    """The UTF-8 size of `text`, or, where counting would take the event loop long, an upper bound of it."""
    if text.isascii():
        return len(text)
    if len(text) > _NUM_CHARS_MEASURED:
        return _MAX_BYTES_PER_CHAR * len(text)
    return len(text.encode(errors="surrogatepass"))
