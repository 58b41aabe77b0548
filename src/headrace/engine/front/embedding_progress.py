"""One embedding request as its consumer sees it: nothing, then the vector. Pure; `RequestProgress` is for answers."""

from collections.abc import Callable

import numpy as np

from headrace.engine.embedding_outputs import EmbeddingOutput, EmbeddingRequestOutput
from headrace.engine.front.request_times import RequestTimes
from headrace.engine.outputs import FinishReason
from headrace.engine.wire.errors import error_class
from headrace.engine.wire.messages import TokenDelta
from headrace.errors import EngineGenerateError, HeadraceError
from headrace.tokenization.tokenizer import TokenIds


class EmbeddingProgress:
    """The state of one embedding request in the front end. `notify` is called when `take` has something to give."""

    num_tokens = 0
    max_tokens = None

    def __init__(self, *, request_id: str, core_id: str, arrival_time: float, notify: Callable[[], None]) -> None:
        self.request_id = request_id
        self.core_id = core_id
        self.is_finished = False
        self.is_exhausted = False
        self.finish_reason: FinishReason | None = None
        self.times = RequestTimes(arrival_time)
        self.num_cached_tokens = 0
        self._notify = notify
        self._prompt_ids: TokenIds = np.empty(0, dtype=np.uint32)
        self._embedding: EmbeddingOutput | None = None
        self._error: HeadraceError | None = None

    def __repr__(self) -> str:
        return f"<EmbeddingProgress {self.core_id} {'finished' if self.is_finished else 'live'}>"

    @property
    def core_ids(self) -> tuple[str, ...]:
        return (self.core_id,)

    def part(self, core_id: str) -> "EmbeddingProgress":  # noqa: ARG002 - there is one only
        return self

    @property
    def num_prompt_tokens(self) -> int:
        return len(self._prompt_ids)

    def set_prompt(self, token_ids: TokenIds) -> None:
        self._prompt_ids = token_ids

    def apply(self, delta: TokenDelta, *, now: float) -> None:
        """Take the core's word. Deltas before the last one say nothing of an embedding."""
        if self.is_finished:
            return
        self.num_cached_tokens = max(self.num_cached_tokens, delta.num_cached_tokens)
        self.times.note_core(delta.queue_s, delta.prefill_s)
        if delta.finish_reason == "error":
            message = f"request {self.request_id!r} failed in the engine: {delta.error}"
            self.fail(error_class(delta.error_kind)(message, param=delta.error_param), now=now)
        elif delta.finish_reason == "abort":
            self.abort(now=now)
        elif delta.embedding is not None:
            vector = np.frombuffer(delta.embedding, dtype=np.float32)
            self._embedding = EmbeddingOutput(embedding=vector.tolist())
            self._end("stop", now=now)
        elif delta.finish_reason is not None:
            message = f"request {self.request_id!r} ended without a vector; the engine's model gives none"
            self.fail(EngineGenerateError(message), now=now)

    def abort(self, *, now: float) -> None:
        """End it; the consumer gets an output without a vector."""
        if not self.is_finished:
            self._end("abort", now=now)

    def fail(self, error: HeadraceError, *, now: float) -> None:
        """End it with `error`, which `take` raises once."""
        if self.is_finished:
            return
        self._error = error
        self._end(None, now=now)

    def take(self) -> EmbeddingRequestOutput | None:
        """The output, once; None before. Raises the request's error, once."""
        if self.is_exhausted or not self.is_finished:
            return None
        self.is_exhausted = True
        if self._error is not None:
            raise self._error
        return EmbeddingRequestOutput(
            request_id=self.request_id,
            outputs=self._embedding,
            prompt_token_ids=self._prompt_ids.tolist(),
            finished=True,
            num_cached_tokens=self.num_cached_tokens,
            metrics=self.times.metrics(num_generation_tokens=0),
        )

    def _end(self, reason: FinishReason | None, *, now: float) -> None:
        self.is_finished = True
        self.finish_reason = reason
        self.times.finished = now
        self._notify()
