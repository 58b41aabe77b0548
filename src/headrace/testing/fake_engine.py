"""An engine without a model: has the API of `AsyncLLMEngine` that servers use, answers in a known way, and waits, dies
and counts as a test tells it. Tokenization is real, with one token for each byte.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, TypeAlias

from headrace.engine.outputs import (
    CompletionOutput,
    FinishReason,
    RequestMetrics,
    RequestOutput,
    RequestOutputKind,
)
from headrace.engine.sampling_params import SamplingParams
from headrace.errors import ContextLengthError, EngineDeadError, InvalidRequestError
from headrace.tokenization import ByteTokenizer, TokenIds, TokenizationService, TokenizationSettings

Answer: TypeAlias = Callable[[Sequence[int]], Sequence[int]]
"""The token ids that follow a prompt's."""


def echo(prompt_token_ids: Sequence[int]) -> Sequence[int]:
    """The prompt again."""
    return prompt_token_ids


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeModelConfig:
    served_model_name: str
    max_model_len: int
    vocab_size: int = ByteTokenizer.vocab_size
    model: str = "fake-model-directory"


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeEngineStatistics:
    num_running: int
    num_waiting: int = 0
    kv_cache_usage: float = 0.0
    num_preemptions: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    num_started: int = 0
    num_aborted: int = 0
    """Requests ended by `abort` or by a consumer that left."""


@dataclass(slots=True)
class _Plan:
    """A whole answer, known from the start."""

    token_ids: list[int]
    pieces: list[str]
    finish_reason: FinishReason
    stop_reason: str | None = None


@dataclass(slots=True)
class _Request:
    request_id: str
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    num_tokens: int = 0
    is_aborted: bool = False


class FakeEngine:
    """Answers every prompt with `answer(prompt)`, a token at a time, until `max_tokens` or its end; samples nothing.

    `hold`, `release` and `die` steer it, `until` waits for what it counts. For one event loop.
    """

    def __init__(
        self,
        *,
        model: str = "fake-model",
        max_model_len: int = 4096,
        answer: Answer = echo,
        tokenizer: ByteTokenizer | None = None,
    ) -> None:
        self._config = FakeModelConfig(served_model_name=model, max_model_len=max_model_len)
        self._answer = answer
        self._tokenizer = tokenizer or ByteTokenizer()
        self.tokenization = TokenizationService(TokenizationSettings())
        self.tokenization.register(model, self._tokenizer)
        self._live: dict[str, _Request] = {}
        self._hold_after: int | None = None
        self._dead_error: EngineDeadError | None = None
        self._changed = asyncio.Event()
        self._num_started = 0
        self._num_aborted = 0

    # -- what a test does with it

    @property
    def num_live(self) -> int:
        """Requests that have begun and not ended."""
        return len(self._live)

    def hold(self, *, after_tokens: int = 0) -> None:
        """From now on every request waits once it has that many tokens, until `release`."""
        self._hold_after = after_tokens

    def release(self) -> None:
        self._hold_after = None
        self._wake_all()

    def die(self, reason: str = "the fake core was told to die") -> None:
        """Fail every request, and each that comes, as the loss of the core does."""
        self._dead_error = EngineDeadError(reason)
        self._wake_all()

    async def until(self, condition: Callable[[], bool], *, timeout_s: float = 10.0) -> None:
        """Returns when `condition`, which reads this engine's counts, holds; raises TimeoutError otherwise."""
        async with asyncio.timeout(timeout_s):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    # -- what a server does with it

    async def generate(
        self,
        prompt: Sequence[int] | TokenIds,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,  # noqa: ARG002 - every request runs at once
    ) -> AsyncGenerator[RequestOutput, None]:
        """See `AsyncLLMEngine.generate`."""
        self._refuse_when_dead()
        prompt_token_ids = [int(token_id) for token_id in prompt]
        plan = self._plan(prompt_token_ids, sampling_params)
        request = self._begin(request_id)
        try:
            async for output in self._outputs(request, prompt_token_ids, plan, sampling_params.output_kind):
                if output.finished:
                    self._end(request)
                yield output
        finally:
            self._end(request, is_early=True)

    async def abort(self, request_id: str | Iterable[str]) -> None:
        for one in [request_id] if isinstance(request_id, str) else list(request_id):
            if (request := self._live.get(one)) is not None:
                request.is_aborted = True
                self._num_aborted += 1
                request.wake.set()

    async def check_health(self) -> None:
        self._refuse_when_dead()

    async def get_model_config(self) -> FakeModelConfig:
        return self._config

    def default_sampling_params(self) -> SamplingParams:
        return SamplingParams(max_tokens=None)

    def statistics(self) -> FakeEngineStatistics:
        return FakeEngineStatistics(
            num_running=len(self._live), num_started=self._num_started, num_aborted=self._num_aborted
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.tokenization.aclose()

    def __repr__(self) -> str:
        return f"<FakeEngine {self._config.served_model_name} num_live={len(self._live)}>"

    # -- how it answers

    def _plan(self, prompt_token_ids: list[int], params: SamplingParams) -> _Plan:
        params.refuse_unbuilt()
        room = self._config.max_model_len - len(prompt_token_ids)
        if room <= 0:
            raise ContextLengthError(
                f"This model's maximum context length is {self._config.max_model_len} tokens. However, your prompt has "
                f"{len(prompt_token_ids)} tokens.",
                param="prompt",
            )
        max_tokens = room if params.max_tokens is None else min(room, params.max_tokens)
        whole = list(self._answer(prompt_token_ids))
        decoder = self._tokenizer.incremental_decoder(skip_special_tokens=params.skip_special_tokens)
        token_ids = whole[:max_tokens]
        pieces = [decoder.push([token_id]) for token_id in token_ids]
        if not pieces:
            raise InvalidRequestError("the prompt is empty", param="prompt")
        pieces[-1] += decoder.finish()
        plan = _Plan(token_ids, pieces, "length" if len(whole) > max_tokens else "stop")
        return _cut_at_stop(plan, params)

    async def _outputs(
        self, request: _Request, prompt_token_ids: list[int], plan: _Plan, kind: RequestOutputKind
    ) -> AsyncGenerator[RequestOutput, None]:
        num_planned = len(plan.token_ids)
        for position in range(1, num_planned + 1):
            await self._next_step(request)
            is_last = position == num_planned or request.is_aborted
            num_before = request.num_tokens
            request.num_tokens += not request.is_aborted
            self._changed.set()
            if is_last or kind is not RequestOutputKind.FINAL_ONLY:
                begin = num_before if kind is RequestOutputKind.DELTA else 0
                yield RequestOutput(
                    request_id=request.request_id,
                    prompt=None,
                    prompt_token_ids=prompt_token_ids,
                    outputs=[_completion(plan, slice(begin, request.num_tokens), request, is_last=is_last)],
                    finished=is_last,
                    metrics=RequestMetrics(arrival_time=0.0),
                )
            if is_last:
                return

    async def _next_step(self, request: _Request) -> None:
        """Returns when the request may have its next token; always lets others run first."""
        await asyncio.sleep(0)
        while not request.is_aborted:
            self._refuse_when_dead()
            if self._hold_after is None or request.num_tokens < self._hold_after:
                return
            request.wake.clear()
            await request.wake.wait()

    def _begin(self, request_id: str) -> _Request:
        if request_id in self._live:
            raise InvalidRequestError(f"request id {request_id!r} is in use", param="request_id")
        request = self._live[request_id] = _Request(request_id)
        self._num_started += 1
        self._changed.set()
        return request

    def _end(self, request: _Request, *, is_early: bool = False) -> None:
        if self._live.pop(request.request_id, None) is not None:
            self._num_aborted += is_early and self._dead_error is None
            self._changed.set()

    def _refuse_when_dead(self) -> None:
        if self._dead_error is not None:
            raise EngineDeadError(self._dead_error.message)

    def _wake_all(self) -> None:
        for request in self._live.values():
            request.wake.set()


def _completion(plan: _Plan, span: slice, request: _Request, *, is_last: bool) -> CompletionOutput:
    finish_reason = None
    if is_last:
        finish_reason = "abort" if request.is_aborted else plan.finish_reason
    return CompletionOutput(
        index=0,
        text="".join(plan.pieces[span]),
        token_ids=plan.token_ids[span],
        finish_reason=finish_reason,
        stop_reason=plan.stop_reason if is_last and not request.is_aborted else None,
    )


def _cut_at_stop(plan: _Plan, params: SamplingParams) -> _Plan:
    """`plan` up to the first stop string, which is found in the whole text at once."""
    text = "".join(plan.pieces)
    found = [(position, stop) for stop in params.stop_strings if (position := text.find(stop)) >= 0]
    if not found:
        return plan
    position, stop = min(found)
    num_chars = position + len(stop) if params.include_stop_str_in_output else position
    pieces: list[str] = []
    num_seen = 0
    for piece in plan.pieces:
        if num_seen >= position + len(stop):
            break
        pieces.append(piece[: max(0, num_chars - num_seen)])
        num_seen += len(piece)
    return _Plan(plan.token_ids[: len(pieces)], pieces, "stop", stop)
