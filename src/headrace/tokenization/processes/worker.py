"""A tokenizer process: `python -m headrace.tokenization.processes.worker FD LIMIT_S`, FD being its end of the socket.

Answers one question after another and keeps nothing but the tokenizers. It ends when the other end of the socket
closes, when the process that started it is gone however that died, and by itself when one question takes it longer
than LIMIT_S: a watchdog of the interpreter sees to that, also while a library holds the GIL.
"""

import faulthandler
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator

import msgspec

from headrace.errors import InvalidRequestError
from headrace.tokenization.load import load_tokenizer
from headrace.tokenization.processes.wire import (
    Answer,
    Encode,
    EncodeFailed,
    FrameSplitter,
    Ids,
    Load,
    Loaded,
    LoadFailed,
    Question,
    encode_frame,
)
from headrace.tokenization.tokenizer import Tokenizer

_PARENT_CHECK_S = 1.0
_RECEIVE_BYTES = 256 * 1024
_WARM_UP_TEXT = "Warm-up: one text with words, 12345, spaces   and\nlines."


def serve(fd: int, *, limit_s: float, load: Callable[[str], Tokenizer] = load_tokenizer) -> None:
    """Answer what comes over the socket `fd` until it closes; `load` makes a tokenizer from its path."""
    # Interrupts and SIGTERM are for the process that started this one, which drains first and then ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    faulthandler.enable()
    tokenizers: dict[int, Tokenizer] = {}
    with socket.socket(fileno=fd) as sock:
        for question in _questions(sock):
            faulthandler.dump_traceback_later(limit_s, exit=True)
            if isinstance(question, Load):
                answer = _load(question, tokenizers, load=load)
            else:
                answer = _encode(question, tokenizers)
            faulthandler.cancel_dump_traceback_later()
            sock.settimeout(None)
            sock.sendall(encode_frame(answer))


def _questions(sock: socket.socket) -> Iterator[Question]:
    """What comes over `sock`, until it closes or the process that started this one is gone.

    The socket alone would do, if no other process could have inherited its other end by a fork.
    """
    parent = os.getppid()
    frames = FrameSplitter()
    decoder = msgspec.msgpack.Decoder(Question)
    while True:
        sock.settimeout(_PARENT_CHECK_S)
        try:
            chunk = sock.recv(_RECEIVE_BYTES)
        except TimeoutError:
            if os.getppid() != parent:
                return
            continue
        if not chunk:
            return
        for payload in frames.feed(chunk):
            yield decoder.decode(payload)


def _load(question: Load, tokenizers: dict[int, Tokenizer], *, load: Callable[[str], Tokenizer]) -> Answer:
    try:
        tokenizer = load(question.path)
        tokenizer.encode_batch([_WARM_UP_TEXT], add_special_tokens=False)
    except BaseException as error:  # noqa: BLE001 - the process's outermost boundary; Rust panics are no Exceptions
        return LoadFailed(question.number, f"{type(error).__name__}: {error}")
    tokenizers[question.number] = tokenizer
    return Loaded(question.number, tokenizer.fingerprint)


def _encode(question: Encode, tokenizers: dict[int, Tokenizer]) -> Answer:
    begun_s = time.monotonic()
    try:
        (token_ids,) = tokenizers[question.number].encode_batch(
            [question.text], add_special_tokens=question.add_special_tokens
        )
        return Ids(question.job, token_ids.tobytes(), time.monotonic() - begun_s)
    except InvalidRequestError as error:
        return EncodeFailed(question.job, error.message, is_text_at_fault=True)
    except BaseException as error:  # noqa: BLE001 - the process's outermost boundary; Rust panics are no Exceptions
        return EncodeFailed(question.job, f"{type(error).__name__}: {error}", is_text_at_fault=False)


if __name__ == "__main__":
    try:
        serve(int(sys.argv[1]), limit_s=float(sys.argv[2]))
    except OSError:  # the other end is gone in the middle of an answer
        sys.exit(1)
