"""Several completions of one prompt: to the core a request each, to the consumer one request. Pure.

The first computes the prompt; the others wait for it and find it in the prefix cache. Completion i draws as a request
of its own with the seed `seed + i` would, whatever else is in the batch.
"""

from collections.abc import Callable, Sequence

import msgspec

from headrace.engine.front.request_progress import RequestProgress
from headrace.engine.front.request_times import RequestTimes
from headrace.engine.front.stop_strings import StopStrings
from headrace.engine.outputs import CompletionOutput, FinishReason, PositionLogprobs, RequestOutput, RequestOutputKind
from headrace.engine.sampling_params import MAX_SEED, SamplingParams
from headrace.engine.wire.messages import AddRequest, TokenDelta
from headrace.errors import HeadraceError


def open_progress(
    *, request_id: str, core_id: str, params: SamplingParams, arrival_time: float, notify: Callable[[], None]
) -> "RequestProgress | ParallelProgress":
    """The state of a request with `params.n` completions."""
    if params.n > 1:
        return ParallelProgress(
            request_id=request_id, core_id=core_id, params=params, arrival_time=arrival_time, notify=notify
        )
    return RequestProgress(
        request_id=request_id, core_id=core_id, params=params, arrival_time=arrival_time, notify=notify
    )


def fan_out(message: AddRequest) -> list[AddRequest]:
    """What the core is told of a request with `n` completions: a message for each."""
    params = message.sampling_params
    if params.n == 1:
        return [message]
    leader_id = _core_id(message.request_id, 0)
    return [
        msgspec.structs.replace(
            message,
            request_id=_core_id(message.request_id, index),
            sampling_params=_params_of(params, index),
            leader_id=leader_id if index else None,
        )
        for index in range(params.n)
    ]


class ParallelProgress:
    """The state of one request with several completions; has what `RequestProgress` has for one.

    Its outputs hold the completions that have news or, where outputs are cumulative, all that have begun. The last one
    to end finishes it; one that fails fails the request.
    """

    def __init__(
        self,
        *,
        request_id: str,
        core_id: str,
        params: SamplingParams,
        arrival_time: float,
        notify: Callable[[], None],
    ) -> None:
        self.request_id = request_id
        self.core_id = core_id
        """Of the whole; the core knows only those of its completions."""
        self.is_exhausted = False
        """The last output, or the error, has been taken."""
        stop_strings = StopStrings(params.stop_strings)
        self.children = tuple(
            RequestProgress(
                request_id=request_id,
                core_id=_core_id(core_id, index),
                params=_params_of(params, index),
                arrival_time=arrival_time,
                notify=self._note_news,
                index=index,
                stop_strings=stop_strings,
            )
            for index in range(params.n)
        )
        """The completions in order."""
        self._by_core_id = {child.core_id: child for child in self.children}
        self._params = params
        self._notify = notify
        self._error: HeadraceError | None = None
        self._latest: dict[int, CompletionOutput] = {}
        """What cumulative outputs repeat."""
        self._prompt_logprobs: list[PositionLogprobs | None] | None = None

    def __repr__(self) -> str:
        num_finished = sum(child.is_finished for child in self.children)
        return f"<ParallelProgress {self.core_id} {num_finished} of {len(self.children)} finished>"

    @property
    def core_ids(self) -> tuple[str, ...]:
        return tuple(self._by_core_id)

    @property
    def is_finished(self) -> bool:
        """Nothing more will be generated; the last output, or the error, may still wait to be taken."""
        return self._error is not None or all(child.is_finished for child in self.children)

    @property
    def finish_reason(self) -> FinishReason | None:
        """Of the completion that ended last; None while one is open, and when one has failed."""
        if self._error is not None or not self.is_finished:
            return None
        return max(self.children, key=lambda child: child.times.finished or 0.0).finish_reason

    @property
    def times(self) -> RequestTimes:
        """From the first token of any completion to the last of all."""
        return _joined([child.times for child in self.children])

    @property
    def num_tokens(self) -> int:
        return sum(child.num_tokens for child in self.children)

    @property
    def num_prompt_tokens(self) -> int:
        return self.children[0].num_prompt_tokens

    @property
    def num_cached_tokens(self) -> int:
        """Of the first completion: the others find in the cache what that one has computed."""
        return self.children[0].num_cached_tokens

    @property
    def max_tokens(self) -> int | None:
        return self._params.max_tokens

    def part(self, core_id: str) -> RequestProgress:
        return self._by_core_id[core_id]

    def apply(self, delta: TokenDelta, *, now: float) -> None:
        """Hand it to the completion that it belongs to."""
        if self._error is None:
            self.part(delta.request_id).apply(delta, now=now)

    def abort(self, *, now: float) -> None:
        """End every completion with what it has."""
        if self._error is None:
            for child in self.children:
                child.abort(now=now)

    def fail(self, error: HeadraceError, *, now: float) -> None:
        """End it with `error`, which `take` raises once."""
        if self.is_finished:
            return
        self._error = error
        for child in self.children:
            child.times.finished = child.times.finished or now
        self._notify()

    def take(self) -> RequestOutput | None:
        """What the consumer gets now; None when there is nothing new. Raises the request's error, once."""
        if self.is_exhausted or (self._is_final_only and not self.is_finished):
            return None
        if self._error is not None:
            self.is_exhausted = True
            raise self._error
        try:
            taken = [output for child in self.children if (output := child.take()) is not None]
        except HeadraceError:
            self.is_exhausted = True
            raise
        if not taken:
            return None
        self.is_exhausted = all(child.is_exhausted for child in self.children)
        return self._join(taken)

    @property
    def _is_final_only(self) -> bool:
        return self._params.output_kind is RequestOutputKind.FINAL_ONLY

    def _note_news(self) -> None:
        failed = next((child.error for child in self.children if child.error is not None), None)
        if self._error is None and failed is not None:
            self._error = failed
        if self.is_finished or not self._is_final_only:
            self._notify()

    def _join(self, taken: Sequence[RequestOutput]) -> RequestOutput:
        first = taken[0]
        completions = [completion for output in taken for completion in output.outputs]
        if self._params.output_kind is RequestOutputKind.CUMULATIVE:
            self._latest.update((completion.index, completion) for completion in completions)
            completions = [self._latest[index] for index in sorted(self._latest)]
        return RequestOutput(
            request_id=self.request_id,
            prompt=first.prompt,
            prompt_token_ids=first.prompt_token_ids,
            outputs=completions,
            finished=self.is_exhausted,
            num_cached_tokens=self.num_cached_tokens,
            prompt_logprobs=self._take_prompt_logprobs(first),
            metrics=self.times.metrics(num_generation_tokens=self.num_tokens),
        )

    def _take_prompt_logprobs(self, first: RequestOutput) -> list[PositionLogprobs | None] | None:
        """The first completion has them; outputs without it repeat them where the output kind does."""
        if self._params.output_kind is RequestOutputKind.DELTA:
            return first.prompt_logprobs
        self._prompt_logprobs = first.prompt_logprobs or self._prompt_logprobs
        return self._prompt_logprobs


def _core_id(core_id: str, index: int) -> str:
    return f"{core_id}.{index}"


def _params_of(params: SamplingParams, index: int) -> SamplingParams:
    """What the completion at `index` is asked for by itself."""
    seed = None if params.seed is None else (params.seed + index) & MAX_SEED
    prompt_logprobs = None if index else params.prompt_logprobs
    return msgspec.structs.replace(params, n=1, seed=seed, prompt_logprobs=prompt_logprobs)


def _joined(times: Sequence[RequestTimes]) -> RequestTimes:
    first_tokens = [one.first_token for one in times if one.first_token is not None]
    last_tokens = [one.last_token for one in times if one.last_token is not None]
    finished = [one.finished for one in times if one.finished is not None]
    return RequestTimes(
        arrival=times[0].arrival,
        first_token=min(first_tokens, default=None),
        last_token=max(last_tokens, default=None),
        finished=max(finished) if len(finished) == len(times) else None,
        queue_s=times[0].queue_s,
        prefill_s=times[0].prefill_s,
    )
