"""An engine without a model: has the API of `AsyncLLMEngine` that servers use, answers in a known way, and waits, dies
and counts as a test tells it. Tokenization is real, with one token for each byte.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, TypeAlias

from prometheus_client import CollectorRegistry

from headrace.engine.embedding_outputs import EmbeddingOutput, EmbeddingRequestOutput
from headrace.engine.front.metrics import PrometheusStatLogger
from headrace.engine.front.step_stats import EndReason, FinishedRequest, StepStats
from headrace.engine.kv_events.config import KVEventsConfig
from headrace.engine.kv_events.sources import event_sources
from headrace.engine.lora_request import LoRARequest
from headrace.engine.outputs import (
    CompletionOutput,
    FinishReason,
    RequestMetrics,
    RequestOutput,
    RequestOutputKind,
    TokensPrompt,
)
from headrace.engine.pooling_params import PoolingParams
from headrace.engine.sampling_params import SamplingParams
from headrace.engine.statistics import EngineStatistics, engine_statistics
from headrace.engine.wire.messages import CoreStatistics
from headrace.errors import ContextLengthError, EngineDeadError, InvalidRequestError, UnsupportedError
from headrace.testing.fake_core import fake_engine_config
from headrace.testing.fake_operations import FakeOperations
from headrace.tokenization import ByteTokenizer, TokenIds, TokenizationService, TokenizationSettings

FAKE_DIMENSIONS = 8
"""Of a vector."""

Answer: TypeAlias = Callable[[Sequence[int]], Sequence[int]]
"""The token ids that follow a prompt's."""


def echo(prompt_token_ids: Sequence[int]) -> Sequence[int]:
    """The prompt again."""
    return prompt_token_ids


def saying(text: str) -> Answer:
    """That text, whatever the prompt."""
    return lambda _prompt_token_ids: list(text.encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeModelConfig:
    served_model_name: str
    max_model_len: int
    vocab_size: int = ByteTokenizer.vocab_size
    model: str = "fake-model-directory"


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeEngineStatistics:
    num_running: int
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
    num_counted: int = 0
    is_aborted: bool = False


class FakeStream:
    """The outputs of one request, which ends when this is closed."""

    def __init__(self, outputs: AsyncGenerator[RequestOutput, None], *, on_close: Callable[[], None]) -> None:
        self._outputs = outputs
        self._on_close = on_close

    def __aiter__(self) -> AsyncIterator[RequestOutput]:
        return self._outputs

    async def aclose(self) -> None:
        self._on_close()
        await self._outputs.aclose()


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
        keeps_to_structures: bool = False,
    ) -> None:
        """With `keeps_to_structures` the test's answers are what `structured_outputs` wants, which nobody checks."""
        self._config = FakeModelConfig(served_model_name=model, max_model_len=max_model_len)
        self._answer = answer
        self._keeps_to_structures = keeps_to_structures
        self.latest_sampling_params: SamplingParams | None = None
        self.latest_cache_salt: str | None = None
        self.latest_trace_headers: Mapping[str, str] | None = None
        self._tokenizer = tokenizer or ByteTokenizer()
        self.tokenization = TokenizationService(TokenizationSettings())
        self.tokenization.register(model, self._tokenizer)
        self._live: dict[str, _Request] = {}
        self._hold_after: int | None = None
        self._dead_error: EngineDeadError | None = None
        self._changed = asyncio.Event()
        self.registry = CollectorRegistry()
        self._metrics = PrometheusStatLogger(
            fake_engine_config(served_model_name=model, max_model_len=max_model_len),
            registry=self.registry,
            statistics=self._engine_statistics,
        )
        self._num_started = 0
        self._num_aborted = 0
        self.operations = FakeOperations()
        self.kv_events: KVEventsConfig | None = None
        """What it says of its KV events; it publishes none."""
        self.adapters: dict[int, LoRARequest] = {}
        """Those that are loaded, by id."""

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

    async def add_request(
        self,
        request_id: str,
        prompt: Sequence[int] | TokenIds | TokensPrompt,
        params: SamplingParams,
        *,
        lora_request: LoRARequest | None = None,
        trace_headers: Mapping[str, str] | None = None,
        priority: int = 0,  # noqa: ARG002 - every request runs at once
    ) -> "FakeStream":
        """See `AsyncLLMEngine.add_request`. With an adapter the answer is to the prompt behind the adapter's name."""
        self._refuse_when_dead()
        self.latest_trace_headers = trace_headers
        prompt_token_ids = self._read_prompt(prompt)
        if lora_request is not None:
            prompt_token_ids = [*lora_request.lora_name.encode(), *prompt_token_ids]
        plan = self._plan(prompt_token_ids, params)
        request = self._begin(request_id)
        return FakeStream(self._counted(request, prompt_token_ids, plan, params), on_close=lambda: self._end(request))

    async def _counted(
        self, request: _Request, prompt_token_ids: list[int], plan: _Plan, params: SamplingParams
    ) -> AsyncGenerator[RequestOutput, None]:
        async for output in self._outputs(request, prompt_token_ids, plan, params.output_kind):
            self._count(request, prompt_token_ids)
            if output.finished:
                self._end(request, reason=output.outputs[0].finish_reason)
            yield output

    async def encode(
        self,
        prompt: Sequence[int] | TokenIds | TokensPrompt,
        pooling_params: PoolingParams,
        request_id: str,
        *,
        lora_request: LoRARequest | None = None,
        trace_headers: Mapping[str, str] | None = None,
        priority: int = 0,  # noqa: ARG002 - every request runs at once
    ) -> AsyncGenerator[EmbeddingRequestOutput, None]:
        """See `AsyncLLMEngine.encode`. The vector is the prompt's first tokens, then zeros; an adapter is its id more
        at the end."""
        self._refuse_when_dead()
        self.latest_trace_headers = trace_headers
        token_ids = self._read_prompt(prompt)
        request = self._begin(request_id)
        try:
            await self._next_step(request)
            vector = (token_ids + [0] * FAKE_DIMENSIONS)[: pooling_params.dimensions or FAKE_DIMENSIONS]
            if lora_request is not None:
                vector[-1] += lora_request.lora_int_id
            size = (sum(value * value for value in vector) ** 0.5 if pooling_params.normalize else 1.0) or 1.0
            is_aborted = request.is_aborted
            self._end(request, reason="abort" if is_aborted else "stop")
            yield EmbeddingRequestOutput(
                request_id=request_id,
                outputs=None if is_aborted else EmbeddingOutput(embedding=[value / size for value in vector]),
                prompt_token_ids=token_ids,
                finished=True,
                num_cached_tokens=0,
                metrics=RequestMetrics(arrival_time=0.0),
            )
        finally:
            self._end(request)

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        """A path that holds "missing" names no adapter."""
        if "missing" in lora_request.lora_path:
            raise InvalidRequestError(f"no LoRA adapter at {lora_request.lora_path}", param="lora_path")
        is_new = lora_request.lora_int_id not in self.adapters
        self.adapters[lora_request.lora_int_id] = lora_request
        return is_new

    async def remove_lora(self, lora_id: int) -> bool:
        return self.adapters.pop(lora_id, None) is not None

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

    async def get_kv_event_sources(self) -> dict[int, KVEventsConfig]:
        return event_sources(self.kv_events, num_ranks=1)

    async def sleep(self, level: int = 1) -> None:
        self.operations.sleep(level)

    async def wake_up(self, tags: Sequence[str] | None = None) -> None:
        self.operations.wake_up(tags)

    async def is_sleeping(self) -> bool:
        return self.operations.is_asleep

    async def reset_prefix_cache(self) -> bool:
        """Nothing is forgotten while a request runs."""
        self.operations.num_cache_resets += not self._live
        return not self._live

    async def start_profile(self) -> None:
        self.operations.start_profile()

    async def stop_profile(self) -> None:
        self.operations.stop_profile()

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

    def _read_prompt(self, prompt: Sequence[int] | TokenIds | TokensPrompt) -> list[int]:
        self.latest_cache_salt = prompt.get("cache_salt") if isinstance(prompt, dict) else None
        token_ids = prompt["prompt_token_ids"] if isinstance(prompt, dict) else prompt
        return [int(token_id) for token_id in token_ids]

    def _plan(self, prompt_token_ids: list[int], params: SamplingParams) -> _Plan:
        params.refuse_unbuilt()
        self.latest_sampling_params = params
        _refuse_what_needs_a_model(params, keeps_to_structures=self._keeps_to_structures)
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

    def _end(self, request: _Request, *, reason: FinishReason | None = None) -> None:
        """Without a `reason` its consumer has left, or the engine has died."""
        if self._live.pop(request.request_id, None) is not None:
            has_left = reason is None and self._dead_error is None
            self._num_aborted += has_left
            self._changed.set()
            self._record(finished=(_finished(request, "abort" if has_left else reason or "error"),))

    def _count(self, request: _Request, prompt_token_ids: list[int]) -> None:
        """What was generated since the output before, for /metrics."""
        is_first = request.num_counted == 0
        self._record(
            num_prompt_tokens=len(prompt_token_ids) if is_first else 0,
            num_generation_tokens=request.num_tokens - request.num_counted,
            times_to_first_token_s=(0.0,) if is_first else (),
        )
        request.num_counted = request.num_tokens

    def _record(
        self,
        *,
        num_prompt_tokens: int = 0,
        num_generation_tokens: int = 0,
        times_to_first_token_s: tuple[float, ...] = (),
        finished: tuple[FinishedRequest, ...] = (),
    ) -> None:
        step = StepStats(
            num_prompt_tokens=num_prompt_tokens,
            num_cached_prompt_tokens=0,
            num_generation_tokens=num_generation_tokens,
            times_to_first_token_s=times_to_first_token_s,
            inter_token_latencies_s=(),
            finished=finished,
            num_answers_asked=(),
        )
        self._metrics.record(step, self._engine_statistics())

    def _engine_statistics(self) -> EngineStatistics:
        return engine_statistics(CoreStatistics(num_running=len(self._live)), num_unfinished=len(self._live))

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


def _finished(request: _Request, reason: EndReason) -> FinishedRequest:
    return FinishedRequest(
        request_id=request.request_id,
        reason=reason,
        num_prompt_tokens=0,
        num_cached_tokens=0,
        num_generation_tokens=request.num_tokens,
        max_tokens=None,
        e2e_s=0.0,
        time_to_first_token_s=None,
        queue_s=None,
        prefill_s=None,
        decode_s=None,
    )


def _refuse_what_needs_a_model(params: SamplingParams, *, keeps_to_structures: bool) -> None:
    """What would change the answer of a real engine, and not this one's, is not to pass unnoticed."""
    wanted = {
        "n": params.n != 1,
        "logprobs": params.wants_logprobs,
        "prompt_logprobs": params.prompt_logprobs is not None,
        "logit_bias": bool(params.logit_bias),
        "allowed_token_ids": params.allowed_token_ids is not None,
        "bad_words": bool(params.bad_words),
        "structured_outputs": params.structured_outputs is not None and not keeps_to_structures,
        "stream_interval": params.stream_interval is not None,
    }
    for name in (name for name, is_wanted in wanted.items() if is_wanted):
        raise UnsupportedError(f"{name} is not supported by the fake engine", param=name)


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
