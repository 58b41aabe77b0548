"""The bodies of vLLM's and SGLang's `/tokenize` and `/detokenize`. Pure; knows nothing of HTTP.

Theory. A C call of a JSON library holds the interpreter from beginning to end, in whatever thread it runs, so one call
for a body of megabytes would hold the event loop. Bodies are therefore written and read by generators that yield after
each fraction of a millisecond; whoever runs them lets others run in between.

SGLang differs from vLLM in three things. Its `/tokenize` encodes a text as its `/v1/completions` would and, in newer
versions, passes over `add_special_tokens`; its chats always open the assistant's turn unless the final message is to be
continued; its `/detokenize` reads `skip_special_tokens`. What an engine would pass over is refused here by name.
"""

import re
from array import array
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol, TypeAlias, TypeVar

import msgspec
import numpy as np

from headrace.errors import (
    InvalidRequestError,
    PayloadTooLargeError,
    UnsupportedError,
    UpstreamProtocolError,
)
from headrace.tokenization.prompt import ChatPrompt
from headrace.tokenization.remote.settings import RemoteEngine
from headrace.tokenization.tokenizer import TokenIds

AnswerT = TypeVar("AnswerT")
ResultT = TypeVar("ResultT")

Steps: TypeAlias = Generator[None, None, ResultT]
"""Work that yields wherever others may run, and returns its result."""

_STEP_BYTES = 128 * 1024
_TEXT_PIECE_CHARS = 64 * 1024
_IDS_PIECE_BYTES = 32 * 1024
_IDS_PIECE_LENGTH = 8 * 1024
_MAX_SANE_MODEL_LEN = 1 << 31

_TOKENS_KEY = re.compile(rb'"tokens"\s*:\s*\[')
"""Cannot match within a string: quotes are escaped there."""

_IDS_DECODER = msgspec.json.Decoder(list[Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]])


@dataclass(frozen=True, slots=True)
class TokenizeAnswer:
    """What `/tokenize` told."""

    token_ids: TokenIds
    max_model_len: int | None
    """None where the engine does not know it."""


class RemoteWire(Protocol):
    """One engine's bodies. Paths begin with a slash."""

    tokenize_path: str
    detokenize_path: str

    def tokenize_body(self, prompt: str | ChatPrompt, *, model: str, add_special_tokens: bool) -> Iterator[bytes]:
        """The body in pieces. Raises UnsupportedError for what the engine cannot do, at once."""
        ...

    def detokenize_body(
        self, token_ids: Sequence[int] | TokenIds, *, model: str, skip_special_tokens: bool
    ) -> Iterator[bytes]:
        """The body in pieces. Raises UnsupportedError for what the engine cannot do, at once."""
        ...

    def read_text(self, body: bytes) -> str:
        """The text in the answer of `/detokenize`. Raises UpstreamProtocolError."""
        ...


class VllmWire:
    """vLLM's bodies, which Headrace's own server takes too."""

    tokenize_path = "/tokenize"
    detokenize_path = "/detokenize"

    def tokenize_body(self, prompt: str | ChatPrompt, *, model: str, add_special_tokens: bool) -> Iterator[bytes]:
        if isinstance(prompt, str):
            return _object(_text("prompt", prompt), {"model": model, "add_special_tokens": add_special_tokens})
        fields = _chat_fields(prompt, model=model) | {
            "add_generation_prompt": prompt.add_generation_prompt,
            "add_special_tokens": False,
        }
        return _object(_list("messages", map(_encode, prompt.messages)), fields)

    def detokenize_body(
        self, token_ids: Sequence[int] | TokenIds, *, model: str, skip_special_tokens: bool
    ) -> Iterator[bytes]:
        if skip_special_tokens:
            raise UnsupportedError(
                "vLLM's /detokenize always keeps special tokens; leave skip_special_tokens out",
                param="skip_special_tokens",
            )
        return _object(_list("tokens", _written_ids(token_ids)), {"model": model})

    def read_text(self, body: bytes) -> str:
        return _decode(body, _VllmText).prompt


class SglangWire:
    """SGLang's bodies."""

    tokenize_path = "/tokenize"
    detokenize_path = "/detokenize"

    def tokenize_body(self, prompt: str | ChatPrompt, *, model: str, add_special_tokens: bool) -> Iterator[bytes]:
        if isinstance(prompt, str):
            if not add_special_tokens:
                raise UnsupportedError(
                    "SGLang's /tokenize may add special tokens though add_special_tokens is false",
                    param="add_special_tokens",
                )
            return _object(_text("prompt", prompt), {"model": model, "add_special_tokens": True})
        if prompt.add_generation_prompt == prompt.continue_final_message:
            raise UnsupportedError(
                "SGLang's /tokenize opens the assistant's turn exactly when the final message is not continued; "
                f"add_generation_prompt={prompt.add_generation_prompt} cannot be had",
                param="add_generation_prompt",
            )
        return _object(_list("messages", map(_encode, prompt.messages)), _chat_fields(prompt, model=model))

    def detokenize_body(
        self, token_ids: Sequence[int] | TokenIds, *, model: str, skip_special_tokens: bool
    ) -> Iterator[bytes]:
        fields = {"model": model, "skip_special_tokens": skip_special_tokens}
        return _object(_list("tokens", _written_ids(token_ids)), fields)

    def read_text(self, body: bytes) -> str:
        return _decode(body, _SglangText).text


def wire_of(engine: RemoteEngine) -> RemoteWire:
    """The bodies of `engine`."""
    return VllmWire() if engine == "vllm" else SglangWire()


def assembling(pieces: Iterable[bytes], *, max_bytes: int) -> Steps[bytes]:
    """The pieces as one body. Raises PayloadTooLargeError, and InvalidRequestError for what JSON cannot carry."""
    body: list[bytes] = []
    num_bytes = num_bytes_before_step = 0
    try:
        for piece in pieces:
            num_bytes += len(piece)
            if num_bytes > max_bytes:
                raise PayloadTooLargeError(
                    f"the request to a remote tokenizer is larger than max_request_bytes, {max_bytes}", param="prompt"
                )
            body.append(piece)
            if num_bytes - num_bytes_before_step > _STEP_BYTES:
                num_bytes_before_step = num_bytes
                yield
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"the text has the lone surrogate U+{ord(error.object[error.start]):04X}; send valid Unicode",
            param="prompt",
        ) from error
    except (TypeError, NotImplementedError, RecursionError) as error:
        raise InvalidRequestError(
            f"messages or tools hold what JSON cannot carry: {error}", param="messages"
        ) from error
    return b"".join(body)


def reading_tokens(body: bytes) -> Steps[TokenizeAnswer]:
    """The ids in the answer of `/tokenize`, packed as they are read. Raises UpstreamProtocolError."""
    key = _TOKENS_KEY.search(body)
    end = body.find(b"]", key.end()) if key is not None else -1
    if key is None or end < 0:
        raise UpstreamProtocolError("the answer of /tokenize has no list of tokens")
    rest = _decode(body[: key.end()] + body[end:], _TokenizeRest)
    packed = array("I")
    for piece in _cut_ids(body, start=key.end(), end=end):
        if packed:
            yield
        try:
            packed.extend(_IDS_DECODER.decode(piece))
        except msgspec.MsgspecError as error:
            raise UpstreamProtocolError(f"the answer of /tokenize holds what is no token id: {error}") from error
    if rest.count != len(packed):
        raise UpstreamProtocolError(f"the answer of /tokenize counts {rest.count} tokens but lists {len(packed)}")
    token_ids = np.frombuffer(packed, dtype=np.uint32) if packed else np.empty(0, dtype=np.uint32)
    token_ids.flags.writeable = False
    return TokenizeAnswer(token_ids, _known_length(rest.max_model_len))


def _known_length(max_model_len: float | None) -> int | None:
    """Engines write -1, or transformers' 1e30, for a length that they do not know."""
    if max_model_len is None or not 0 < max_model_len < _MAX_SANE_MODEL_LEN:
        return None
    return int(max_model_len)


class _TokenizeRest(msgspec.Struct):
    """The answer of `/tokenize` with its list emptied."""

    tokens: list[int]
    count: int
    max_model_len: int | float | None = None


class _VllmText(msgspec.Struct):
    prompt: str


class _SglangText(msgspec.Struct):
    text: str


def _decode(body: bytes, form: type[AnswerT]) -> AnswerT:
    try:
        return msgspec.json.decode(body, type=form)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UpstreamProtocolError(f"the answer of a remote tokenizer cannot be read: {error}") from error


def _cut_ids(body: bytes, *, start: int, end: int) -> Iterator[bytes]:
    """The list's content from `start` to `end`, cut at commas, each piece a list of its own."""
    if not body[start:end].strip():
        return
    while start < end:
        cut = body.find(b",", start + _IDS_PIECE_BYTES, end)
        stop = end if cut < 0 else cut
        yield b"[" + body[start:stop] + b"]"
        start = stop + 1


def _chat_fields(prompt: ChatPrompt, *, model: str) -> dict[str, object]:
    fields: dict[str, object] = {"model": model, "continue_final_message": prompt.continue_final_message}
    if prompt.tools is not None:
        fields["tools"] = list(prompt.tools)
    if prompt.template_kwargs is not None:
        fields["chat_template_kwargs"] = prompt.template_kwargs
    return fields


def _object(first_member: Iterator[bytes], rest: Mapping[str, object]) -> Iterator[bytes]:
    yield b"{"
    yield from first_member
    yield b"," + _encode(rest)[1:]


def _text(name: str, text: str) -> Iterator[bytes]:
    yield b'"%b":"' % name.encode()
    for start in range(0, len(text), _TEXT_PIECE_CHARS):
        yield msgspec.json.encode(text[start : start + _TEXT_PIECE_CHARS])[1:-1]
    yield b'"'


def _list(name: str, items: Iterable[bytes]) -> Iterator[bytes]:
    yield b'"%b":[' % name.encode()
    separator = b""
    for item in items:
        yield separator + item
        separator = b","
    yield b"]"


def _written_ids(token_ids: Sequence[int] | TokenIds) -> Iterator[bytes]:
    for start in range(0, len(token_ids), _IDS_PIECE_LENGTH):
        piece = token_ids[start : start + _IDS_PIECE_LENGTH]
        ids = piece.tolist() if isinstance(piece, np.ndarray) else list(piece)
        yield msgspec.json.encode(ids)[1:-1]


def _encode(value: object) -> bytes:
    return msgspec.json.encode(value, enc_hook=_plain)


def _plain(value: object) -> object:
    """Mappings and sequences of other kinds, as JSON's own."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise NotImplementedError(f"a {type(value).__name__}")
