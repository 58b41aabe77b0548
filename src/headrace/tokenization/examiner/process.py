"""An examiner: a process that `examination` starts with `FD LIMIT_S NICENESS`, FD being its end of the socket.

It reads one question, answers it and ends; also when the other end of the socket closes, and by a watchdog of the
interpreter when it has lived for LIMIT_S.
"""

import faulthandler
import signal
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace

import msgspec

from headrace.errors import TokenizationError
from headrace.tokenization.admission import admit
from headrace.tokenization.compare import Finding, compare, is_right
from headrace.tokenization.examiner.wire import (
    Admit,
    Answer,
    Compare,
    Compared,
    Facts,
    Question,
    Refused,
    Result,
    Rules,
    Verdict,
)
from headrace.tokenization.huggingface import HuggingFaceTokenizer
from headrace.tokenization.processes.wire import FrameSplitter, encode_frame

_RECEIVE_BYTES = 256 * 1024


def serve(fd: int) -> None:
    """Answer the one question that comes over the socket `fd`."""
    with socket.socket(fileno=fd) as sock:
        question = _question(sock)
        if question is not None:
            for answer in answers(question):
                sock.sendall(encode_frame(answer))


def answers(question: Question) -> Iterator[Answer]:
    """As they become known."""
    try:
        reference = question.definition.load()
    except TokenizationError as error:
        yield Refused(message=error.message)
        return
    if isinstance(question, Admit):
        yield _facts_of(reference)
        yield _verdict_on(reference, question)
    else:
        yield _compared(reference, question)


def _facts_of(reference: HuggingFaceTokenizer) -> Facts:
    return Facts(
        fingerprint=reference.fingerprint,
        vocab_size=reference.vocab_size,
        eos_token_id=reference.eos_token_id,
        max_token_bytes=reference.max_token_bytes,
        special_token_ids=reference.special_token_ids,
        added_tokens=reference.added_tokens,
        rules=Rules.of(reference.cut_rules),
    )


def _verdict_on(reference: HuggingFaceTokenizer, question: Admit) -> Verdict:
    admission = admit(reference, choice=question.choice, uses_cuts=question.uses_cuts)
    return Verdict(
        is_accelerated=admission.encoder is not None,
        encoder_reason=admission.encoder_reason,
        rules=Rules.of(admission.cut_rules),
    )


def _compared(reference: HuggingFaceTokenizer, question: Compare) -> Compared:
    return Compared(findings=[_finding(reference, result) for result in question.results])


def _finding(reference: HuggingFaceTokenizer, result: Result) -> Finding | None:
    """The accelerated encoder, half of what both take, is made only to find out what was wrong."""
    check = result.made(reference=reference, encoder=reference)
    if is_right(check):
        return None
    return compare(replace(check, encoder=reference.accelerated()) if result.is_accelerated else check)


def _question(sock: socket.socket) -> Question | None:
    """None where the other end closes before it has asked."""
    frames = FrameSplitter()
    decoder: msgspec.msgpack.Decoder[Question] = msgspec.msgpack.Decoder(Question)
    while chunk := sock.recv(_RECEIVE_BYTES):
        for payload in frames.feed(chunk):
            return decoder.decode(payload)
    return None


def main() -> None:
    fd, limit_s, _ = sys.argv[1:]  # the last one is for what comes before this module: see `examination`
    # Interrupts and SIGTERM are for the process that started this one, which ends it when it likes.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    faulthandler.dump_traceback_later(float(limit_s), exit=True)
    try:
        serve(int(fd))
    except BrokenPipeError:
        sys.exit(1)  # nobody waits for the answer
