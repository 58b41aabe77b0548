"""What every request has that the core knows by one name, whatever is to come of it. Pure."""

from collections.abc import Callable
from typing import Self

import numpy as np

from headrace.engine.front.request_times import RequestTimes
from headrace.engine.outputs import FinishReason
from headrace.engine.wire.errors import error_class
from headrace.engine.wire.messages import TokenDelta
from headrace.errors import HeadraceError
from headrace.tokenization.tokenizer import TokenIds


class SingleRequest:
    """A request from its arrival to its end; what it gives its consumer is in the classes made of it.

    `core_id` is its name in the core, which no other request ever has: a late output of an aborted request cannot reach
    a later one of the same `request_id`. `notify` is called when there is something to take.
    """

    def __init__(self, *, request_id: str, core_id: str, arrival_time: float, notify: Callable[[], None]) -> None:
        self.request_id = request_id
        self.core_id = core_id
        self.is_finished = False
        """Nothing more will come of it; the last output, or the error, may still wait to be taken."""
        self.is_exhausted = False
        """The last output, or the error, has been taken."""
        self.finish_reason: FinishReason | None = None
        self.error: HeadraceError | None = None
        """Why it failed; `take` raises it."""
        self.times = RequestTimes(arrival_time)
        self.num_cached_tokens = 0
        self._notify = notify
        self._prompt_ids: TokenIds = np.empty(0, dtype=np.uint32)

    @property
    def core_ids(self) -> tuple[str, ...]:
        return (self.core_id,)

    def part(self, core_id: str) -> Self:  # noqa: ARG002 - there is one only
        return self

    @property
    def num_prompt_tokens(self) -> int:
        return len(self._prompt_ids)

    def fail(self, error: HeadraceError, *, now: float) -> None:
        """End it with `error`, which `take` raises once, after what there was before."""
        if self.is_finished:
            return
        self.error = error
        self.is_finished = True
        self.times.finished = now
        self._notify()

    def _goes_on(self, delta: TokenDelta, *, now: float) -> bool:
        """Note what any delta tells of the core; false for a request that has ended, or is failed by this one."""
        if self.is_finished:
            return False
        self.num_cached_tokens = max(self.num_cached_tokens, delta.num_cached_tokens)
        self.times.note_core(delta.queue_s, delta.prefill_s)
        if delta.finish_reason == "error":
            message = f"request {self.request_id!r} failed in the engine: {delta.error}"
            self.fail(error_class(delta.error_kind)(message, param=delta.error_param), now=now)
        return not self.is_finished
