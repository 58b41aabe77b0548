"""Tokenizers that check how they are called, and that fail on demand."""

import asyncio
import threading
from collections.abc import Sequence

from headrace.tokenization.byte_tokenizer import ByteTokenizer
from headrace.tokenization.tokenizer import TokenIds

_GATE_TIMEOUT_S = 30.0


class PanicError(BaseException):
    """Stands for a panic inside a Rust library, which Python code sees as a BaseException."""


class FakeTokenizer(ByteTokenizer):
    """A `ByteTokenizer` that refuses to encode in an event loop's thread and records what it was given.

    `calls` holds the texts of every call in order, without warm-ups.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[list[str]] = []

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[TokenIds]:
        _assert_no_loop_runs()
        if list(texts) != ["warm-up"]:
            self.calls.append(list(texts))
        return super().encode_batch(texts, add_special_tokens=add_special_tokens)


class GatedTokenizer(FakeTokenizer):
    """Waits at a gate while it encodes a text that begins with `wait`. Release the gate at the end of a test."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.is_waiting = threading.Event()
        """Set while, or after, a thread stands at the gate."""

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[TokenIds]:
        token_ids = super().encode_batch(texts, add_special_tokens=add_special_tokens)
        if any(text.startswith("wait") for text in texts):
            self.is_waiting.set()
            if not self.gate.wait(_GATE_TIMEOUT_S):
                raise TimeoutError(f"nobody opened the gate within {_GATE_TIMEOUT_S} s")
        return token_ids


class FailingTokenizer(FakeTokenizer):
    """Raises RuntimeError for a text that begins with `crash`, and PanicError for one that begins with `panic`."""

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[TokenIds]:
        token_ids = super().encode_batch(texts, add_special_tokens=add_special_tokens)
        if any(text.startswith("crash") for text in texts):
            raise RuntimeError("the tokenizer failed, as it was asked to")
        if any(text.startswith("panic") for text in texts):
            raise PanicError("the tokenizer panicked, as it was asked to")
        return token_ids


def _assert_no_loop_runs() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise AssertionError("encode_batch was called in the thread of a running event loop")
