"""What the core's steps did for the requests, counted as it happens and handed on as plain values. Pure."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from headrace.engine.front.live_request import LiveRequest
from headrace.engine.outputs import FinishReason

EndReason: TypeAlias = FinishReason | Literal["error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRequest:
    """One request that ended. Durations in seconds; None where it did not get so far, or the core did not say."""

    request_id: str
    reason: EndReason
    """"abort" too where its consumer left."""
    num_prompt_tokens: int
    num_cached_tokens: int
    num_generation_tokens: int
    max_tokens: int | None
    e2e_s: float
    time_to_first_token_s: float | None
    queue_s: float | None
    """From its arrival in the core to its first step."""
    prefill_s: float | None
    """From its first step to its first token."""
    decode_s: float | None
    """From its first token to its last."""

    @property
    def inference_s(self) -> float | None:
        """From its first step to its last token."""
        if self.prefill_s is None or self.decode_s is None:
            return None
        return self.prefill_s + self.decode_s

    @property
    def time_per_output_token_s(self) -> float | None:
        """Between two tokens of it, on average; None for fewer than two."""
        if self.decode_s is None or self.num_generation_tokens < 2:
            return None
        return self.decode_s / (self.num_generation_tokens - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStats:
    """What happened since the snapshot before: one step of the core, and the requests that ended beside it."""

    num_prompt_tokens: int
    """Of the requests that got their first token."""
    num_cached_prompt_tokens: int
    """Of them, those that came from the prefix cache."""
    num_generation_tokens: int
    times_to_first_token_s: tuple[float, ...]
    inter_token_latencies_s: tuple[float, ...]
    """One for each output that was not a request's first."""
    finished: tuple[FinishedRequest, ...]
    num_answers_asked: tuple[int, ...]
    """`n` of each request that was queued."""


class StepTally:
    """Counts what happens until somebody takes the `stats` and begins another one."""

    def __init__(self) -> None:
        self._num_prompt_tokens = 0
        self._num_cached_prompt_tokens = 0
        self._num_generation_tokens = 0
        self._times_to_first_token_s: list[float] = []
        self._inter_token_latencies_s: list[float] = []
        self._finished: list[FinishedRequest] = []
        self._num_answers_asked: list[int] = []

    @property
    def is_empty(self) -> bool:
        return not (self._num_generation_tokens or self._finished or self._num_answers_asked)

    def note_queued(self, *, num_answers: int) -> None:
        """A request with that `n` was queued."""
        self._num_answers_asked.append(num_answers)

    def note_tokens(self, request: LiveRequest, num_tokens: int, last_token: float | None, now: float) -> None:
        """`num_tokens` came for `request`, whose token before came at `last_token`."""
        self._num_generation_tokens += num_tokens
        if last_token is not None:
            self._inter_token_latencies_s.append(now - last_token)
            return
        self._times_to_first_token_s.append(now - request.times.arrival)
        self._num_prompt_tokens += request.num_prompt_tokens
        self._num_cached_prompt_tokens += request.num_cached_tokens

    def note_end(self, finished: FinishedRequest) -> None:
        """A request ended, by itself or because its consumer left."""
        if finished.reason == "stop" and finished.num_generation_tokens == 0:  # an embedding is its prompt
            self._num_prompt_tokens += finished.num_prompt_tokens
            self._num_cached_prompt_tokens += finished.num_cached_tokens
        self._finished.append(finished)

    def stats(self) -> StepStats:
        return StepStats(
            num_prompt_tokens=self._num_prompt_tokens,
            num_cached_prompt_tokens=self._num_cached_prompt_tokens,
            num_generation_tokens=self._num_generation_tokens,
            times_to_first_token_s=tuple(self._times_to_first_token_s),
            inter_token_latencies_s=tuple(self._inter_token_latencies_s),
            finished=tuple(self._finished),
            num_answers_asked=tuple(self._num_answers_asked),
        )


def finished_request(request: LiveRequest, *, now: float) -> FinishedRequest:
    """`request` as it stands now, at its end."""
    times = request.times
    first, last = times.first_token, times.last_token
    return FinishedRequest(
        request_id=request.request_id,
        reason=request.finish_reason or ("error" if request.is_finished else "abort"),
        num_prompt_tokens=request.num_prompt_tokens,
        num_cached_tokens=request.num_cached_tokens,
        num_generation_tokens=request.num_tokens,
        max_tokens=request.max_tokens,
        e2e_s=(now if times.finished is None else times.finished) - times.arrival,
        time_to_first_token_s=None if first is None else first - times.arrival,
        queue_s=times.queue_s,
        prefill_s=times.prefill_s,
        decode_s=None if first is None or last is None else last - first,
    )
