"""One request as its consumer sees it: tokens come in, text is made of them, outputs are taken out when there is time.

Nothing queues: what has been generated is accumulated here, and `take` gives all of it (or all that is new) at once, so
a consumer that is late, or never reads, holds up nobody. Pure; knows neither the event loop nor the core.
"""

from collections.abc import Callable, Sequence

from headrace.engine.front.answer_logprobs import AnswerLogprobs
from headrace.engine.front.single_request import SingleRequest
from headrace.engine.front.stop_strings import StopStrings, StopStringScanner
from headrace.engine.outputs import CompletionOutput, FinishReason, RequestMetrics, RequestOutput, RequestOutputKind
from headrace.engine.sampling_params import SamplingParams
from headrace.engine.wire.messages import TokenDelta
from headrace.tokenization.tokenizer import IncrementalDecoder, TokenIds

_FINISH_REASONS: dict[str, FinishReason] = {"stop": "stop", "length": "length", "abort": "abort"}


class RequestProgress(SingleRequest):
    """The state of one request for an answer in the front end, from its arrival to its last output."""

    def __init__(
        self,
        *,
        request_id: str,
        core_id: str,
        params: SamplingParams,
        arrival_time: float,
        notify: Callable[[], None],
        index: int = 0,
        stop_strings: StopStrings | None = None,
    ) -> None:
        """`index` is that of its completion, where a request has several, which then share their `stop_strings`."""
        super().__init__(request_id=request_id, core_id=core_id, arrival_time=arrival_time, notify=notify)
        self._params = params
        self._index = index
        self._prompt: str | None = None
        self._prompt_token_ids: list[int] | None = None
        self._eos_token_ids: frozenset[int] = frozenset()
        self._end_token_ids: frozenset[int] = frozenset()
        self._logprobs: AnswerLogprobs | None = None
        self._decoder: IncrementalDecoder | None = None
        stop_strings = stop_strings or StopStrings(params.stop_strings)
        self._scanner = StopStringScanner(stop_strings, include_in_output=params.include_stop_str_in_output)
        self._num_tokens = 0
        self._num_taken_tokens = 0
        self._pieces: list[str] = []
        self._token_ids: list[int] = []
        self._stop_reason: str | int | None = None
        self._has_news = False

    def __repr__(self) -> str:
        state = "finished" if self.is_finished else "live"
        return f"<RequestProgress {self.core_id} {state} num_tokens={self._num_tokens}>"

    @property
    def children(self) -> tuple["RequestProgress"]:
        """Its completions, in order: itself."""
        return (self,)

    @property
    def num_tokens(self) -> int:
        return self._num_tokens

    @property
    def max_tokens(self) -> int | None:
        return self._params.max_tokens

    def set_prompt(
        self,
        prompt: str | None,
        *,
        token_ids: TokenIds,
        decoder: IncrementalDecoder | None,
        eos_token_ids: frozenset[int],
        token_text: Callable[[int], str] | None = None,
    ) -> None:
        """What is known once the prompt is tokenized. Without a decoder the answer has no text.

        `token_text` decodes the tokens of log probabilities.
        """
        self._prompt = prompt
        self._prompt_ids = token_ids
        self._decoder = decoder
        self._eos_token_ids = eos_token_ids
        self._end_token_ids = eos_token_ids.union(self._params.stop_token_ids or ())
        if self._params.wants_logprobs or self._params.prompt_logprobs is not None:
            self._logprobs = AnswerLogprobs(self._params, token_text if self._params.detokenize else None)

    def apply(self, delta: TokenDelta, *, now: float) -> None:
        """Take what one step generated. Sets `is_finished` when it ends here, by the core or by a stop string."""
        if self._goes_on(delta, now=now) and (delta.new_token_ids or delta.finish_reason is not None):
            self._advance(delta, now=now)
            self._notify_news()

    def _advance(self, delta: TokenDelta, *, now: float) -> None:
        if delta.new_token_ids:
            self.times.note_tokens(now)
            num_before = self._num_tokens
            is_end = delta.finish_reason == "stop" and delta.new_token_ids[-1] in self._end_token_ids
            self._append(delta.new_token_ids, ends_with_stop_token=is_end)
            if self._logprobs is not None:
                self._logprobs.add_prompt(delta.prompt_logprobs)
                self._logprobs.add(delta.logprobs[: self._num_tokens - num_before])
        if delta.finish_reason is not None:
            self._flush_text()
            stop_reason = None if delta.stop_reason in self._eos_token_ids else delta.stop_reason
            self._finish(_FINISH_REASONS[delta.finish_reason], stop_reason=stop_reason)
        if self.is_finished:
            self.times.finished = now

    def abort(self, *, now: float) -> None:
        """End it with what has been generated; the consumer gets a last output with the reason "abort"."""
        if self.is_finished:
            return
        self._flush_text()
        self._finish("abort", stop_reason=None)
        self.times.finished = now
        self._notify_news()

    def take(self) -> RequestOutput | None:
        """What the consumer gets now; None when there is nothing new. Raises the request's error, once."""
        if self.is_exhausted:
            return None
        if self._has_output():
            self._has_news = False
            self._num_taken_tokens = self._num_tokens
            self.is_exhausted = self.finish_reason is not None
            return self._make_output()
        if self.error is not None:
            self.is_exhausted = True
            raise self.error
        return None

    def _has_output(self) -> bool:
        if self._params.output_kind is RequestOutputKind.FINAL_ONLY:
            return self.finish_reason is not None
        return self._has_news and (self._params.stream_interval is None or self._is_due(self._params.stream_interval))

    def _is_due(self, interval: int) -> bool:
        """Whether it is the turn of an output, where only the first, the last and every so many tokens make one."""
        num_new = self._num_tokens - self._num_taken_tokens
        return self.is_finished or self._num_taken_tokens == 0 or num_new >= interval

    def _notify_news(self) -> None:
        self._has_news = True
        if self._has_output():
            self._notify()

    def _append(self, token_ids: Sequence[int], *, ends_with_stop_token: bool) -> None:
        if self._decoder is None:
            self._count(token_ids)
            return
        has_hidden_end = ends_with_stop_token and not self._params.include_stop_str_in_output
        if self._params.stop_strings:
            self._append_singly(token_ids, has_hidden_end=has_hidden_end)
            return
        self._count(token_ids)
        self._add_text(self._decoder.push(token_ids[:-1] if has_hidden_end else token_ids))

    def _append_singly(self, token_ids: Sequence[int], *, has_hidden_end: bool) -> None:
        """Token by token, so that the answer ends with the token that completes a stop string."""
        assert self._decoder is not None
        num_shown = len(token_ids) - has_hidden_end
        for position, token_id in enumerate(token_ids):
            self._count((token_id,))
            if position < num_shown:
                self._scan(self._decoder.push((token_id,)))
            if self.is_finished:
                return

    def _count(self, token_ids: Sequence[int]) -> None:
        self._token_ids.extend(token_ids)
        self._num_tokens += len(token_ids)

    def _scan(self, piece: str) -> None:
        scan = self._scanner.feed(piece, may_stop=self._num_tokens > self._params.min_tokens)
        self._add_text(scan.text)
        if scan.stopped_by is not None:
            self._finish("stop", stop_reason=scan.stopped_by)

    def _flush_text(self) -> None:
        """Show what decoder and scanner held back, unless a stop string ends in it or has ended it all."""
        if self._decoder is None or self.is_finished:
            return
        self._scan(self._decoder.finish())
        if not self.is_finished:
            self._add_text(self._scanner.finish())

    def _add_text(self, text: str) -> None:
        if text:
            self._pieces.append(text)

    def _finish(self, reason: FinishReason, *, stop_reason: str | int | None) -> None:
        """The first reason stays: a stop string found in the last of the text comes before the core's own end."""
        if self.is_finished:
            return
        self.is_finished = True
        self.finish_reason = reason
        self._stop_reason = stop_reason

    def _make_output(self) -> RequestOutput:
        if self._prompt_token_ids is None:
            self._prompt_token_ids = self._prompt_ids.tolist()
        is_delta = self._params.output_kind is RequestOutputKind.DELTA
        completion = CompletionOutput(
            index=self._index,
            text=self._take_text(),
            token_ids=self._take_token_ids(),
            cumulative_logprob=self._logprobs.cumulative if self._logprobs is not None else None,
            logprobs=self._logprobs.take(is_delta=is_delta) if self._logprobs is not None else None,
            finish_reason=self.finish_reason,
            stop_reason=self._stop_reason,
        )
        return RequestOutput(
            request_id=self.request_id,
            prompt=self._prompt,
            prompt_token_ids=self._prompt_token_ids,
            outputs=[completion],
            finished=self.finish_reason is not None,
            num_cached_tokens=self.num_cached_tokens,
            prompt_logprobs=self._logprobs.take_prompt(is_delta=is_delta) if self._logprobs is not None else None,
            metrics=self.metrics(),
        )

    def _take_text(self) -> str:
        text = "".join(self._pieces)
        self._pieces = [] if self._params.output_kind is RequestOutputKind.DELTA else [text]
        return text

    def _take_token_ids(self) -> list[int]:
        if self._params.output_kind is not RequestOutputKind.DELTA:
            return self._token_ids.copy()
        token_ids, self._token_ids = self._token_ids, []
        return token_ids

    def metrics(self) -> RequestMetrics:
        """Times up to now."""
        return self.times.metrics(num_generation_tokens=self._num_tokens)
