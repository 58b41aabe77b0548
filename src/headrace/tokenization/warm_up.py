"""The first call of an encoder in each thread, one thread after the other."""

import threading
import time
from collections.abc import Callable

from headrace.tokenization.tokenizer import Tokenizer

_LOOK_S = 0.05


class WarmUp:
    """Call it once in each thread that will encode.

    A thread's first call takes fastokens about 3 ms, but a tenth of a second and more where several threads make theirs
    at the same moment. So they take turns, and the event loop, whose turn is last, does not wait for theirs.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._turn = threading.Lock()
        self._num_warm = 0
        self._is_warmer = threading.Condition()

    def __call__(self) -> None:
        try:
            with self._turn:
                self._tokenizer.encode_batch(["warm-up"], add_special_tokens=False)
        finally:
            with self._is_warmer:
                self._num_warm += 1
                self._is_warmer.notify_all()

    def wait(self, *, num_threads: int, timeout_s: float, should_stop: Callable[[], bool]) -> None:
        """Return when so many threads have made their call, or after `timeout_s`: one may be inside a long call."""
        deadline_s = time.monotonic() + timeout_s
        with self._is_warmer:
            while self._num_warm < num_threads and time.monotonic() < deadline_s and not should_stop():
                self._is_warmer.wait(_LOOK_S)

    def __repr__(self) -> str:
        return f"WarmUp({self._tokenizer!r}, {self._num_warm} threads)"
