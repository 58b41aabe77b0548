"""A tokenizer process that misbehaves when a text asks it to: `python hostile_worker.py FD LIMIT_S`.

The "path" of its tokenizer is `fine`, `broken` (cannot be loaded), `other` (has another fingerprint) or `slow`.
"""

import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from headrace.tokenization import ByteTokenizer
from headrace.tokenization.processes.worker import serve
from headrace.tokenization.tokenizer import TokenIds

FD = int(sys.argv[1])


class HostileTokenizer(ByteTokenizer):
    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[TokenIds]:
        (text,) = texts
        verb, _, argument = text.partition(":")
        if verb == "die" or (verb == "die once" and _is_first(Path(argument))):
            os.kill(os.getpid(), signal.SIGKILL)
        if verb == "hang" or (verb == "hang once" and _is_first(Path(argument))):
            threading.Event().wait()
        if verb == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if verb == "garbage":
            socket.socket(fileno=os.dup(FD)).sendall(b"\x04\x00\x00\x00\xc1\xff\x00\x00")
        if verb == "huge":
            socket.socket(fileno=os.dup(FD)).sendall(b"\xff\xff\xff\xff")
        if verb == "crash":
            raise RuntimeError("boom")
        if verb == "mark":
            Path(argument).touch()
            threading.Event().wait(0.2)
        return super().encode_batch(texts, add_special_tokens=add_special_tokens)


def _is_first(mark: Path) -> bool:
    if mark.exists():
        return False
    mark.touch()
    return True


def load(path: str) -> HostileTokenizer:
    if path == "broken":
        raise ValueError("no such tokenizer")
    if path == "slow":
        threading.Event().wait()
    return HostileTokenizer(chat_template="other") if path == "other" else HostileTokenizer()


if __name__ == "__main__":
    serve(FD, limit_s=float(sys.argv[2]), load=load)
