"""One embedding request as its consumer sees it: nothing, then the vector. Pure; `RequestProgress` is for answers."""

import numpy as np

from headrace.engine.embedding_outputs import EmbeddingOutput, EmbeddingRequestOutput
from headrace.engine.front.single_request import SingleRequest
from headrace.engine.outputs import FinishReason
from headrace.engine.wire.messages import TokenDelta
from headrace.errors import EngineGenerateError
from headrace.tokenization.tokenizer import TokenIds


class EmbeddingProgress(SingleRequest):
    """The state of one embedding request in the front end."""

    num_tokens = 0
    max_tokens = None
    _embedding: EmbeddingOutput | None = None

    def __repr__(self) -> str:
        return f"<EmbeddingProgress {self.core_id} {'finished' if self.is_finished else 'live'}>"

    def set_prompt(self, token_ids: TokenIds) -> None:
        self._prompt_ids = token_ids

    def apply(self, delta: TokenDelta, *, now: float) -> None:
        """Take the core's word. Deltas before the last one say nothing of an embedding."""
        if not self._goes_on(delta, now=now):
            return
        if delta.finish_reason == "abort":
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

    def take(self) -> EmbeddingRequestOutput | None:
        """The output, once; None before. Raises the request's error, once."""
        if self.is_exhausted or not self.is_finished:
            return None
        self.is_exhausted = True
        if self.error is not None:
            raise self.error
        return EmbeddingRequestOutput(
            request_id=self.request_id,
            outputs=self._embedding,
            prompt_token_ids=self._prompt_ids.tolist(),
            finished=True,
            num_cached_tokens=self.num_cached_tokens,
            metrics=self.times.metrics(num_generation_tokens=0),
        )

    def _end(self, reason: FinishReason, *, now: float) -> None:
        self.is_finished = True
        self.finish_reason = reason
        self.times.finished = now
        self._notify()
