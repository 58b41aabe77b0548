"""`AsyncLLMEngine`: the engine as its users see it, the front end of a core that runs in a process of its own.

It joins the parts: input processor (text to ids), core client (the core's life and the channel), output processor (the
live requests). Everything here runs on one event loop, the one that was running when the engine started.
"""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from types import TracebackType
from typing import Self

import msgspec

from headrace.aio.tasks import TaskOwner
from headrace.engine.config import AsyncEngineArgs, EngineConfig
from headrace.engine.core_client import CoreClient, copy_of
from headrace.engine.host import CoreHost, ProcessHost, ThreadHost
from headrace.engine.input_processor import InputProcessor, Prompt
from headrace.engine.messages import CoreStatistics, TokenDelta
from headrace.engine.model_config import ModelConfig
from headrace.engine.output_processor import OutputProcessor
from headrace.engine.outputs import RequestOutput
from headrace.engine.request_log import RequestLog
from headrace.engine.request_progress import RequestProgress
from headrace.engine.request_stream import RequestStream
from headrace.engine.sampling_params import SamplingParams
from headrace.engine.settings import FrontEndSettings
from headrace.engine.statistics import EngineStatistics, engine_statistics
from headrace.errors import EngineDeadError, EngineError, HeadraceError, ModelNotFoundError, OverloadedError
from headrace.tokenization import TokenizationService, TokenizationSettings, Tokenizer


class AsyncLLMEngine:
    """Generates for many requests at once. Use it as an asynchronous context manager, or start and shut it down.

    Without a start the first request starts it. Once dead or shut down it stays so: build another one.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        host: CoreHost,
        settings: FrontEndSettings | None = None,
        tokenization: TokenizationService | None = None,
        request_log: RequestLog | None = None,
    ) -> None:
        """`tokenization` is shared and stays open when given; else the engine has its own and closes it."""
        self._config = config
        self._host = host
        self._settings = settings or FrontEndSettings()
        self._owns_tokenization = tokenization is None
        self._tokenization = tokenization or TokenizationService(TokenizationSettings())
        self._request_log = request_log or RequestLog(is_on=False, max_chars=None)
        self._inputs = InputProcessor(config, tokenization=self._tokenization)
        self._outputs = OutputProcessor(on_left=self._note_end)
        self._owner = TaskOwner("engine")
        self._client: CoreClient | None = None
        self._starting: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_started = False
        self._is_stopped = False
        self._dead_error: EngineDeadError | None = None
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._core_numbers = itertools.count()
        self._epoch_s = time.time() - time.monotonic()

    @classmethod
    def from_engine_args(
        cls,
        engine_args: AsyncEngineArgs,
        *,
        in_process: bool = False,
        settings: FrontEndSettings | None = None,
        tokenization: TokenizationService | None = None,
    ) -> Self:
        """Read the model's configuration (blocking, milliseconds); nothing starts yet.

        `in_process=True` (or the setting of that name) runs the core in a thread, for debugging. Raises SettingsError.
        """
        settings = settings or FrontEndSettings(in_process=in_process)
        return cls(
            engine_args.create_engine_config(),
            host=_thread_host() if in_process or settings.in_process else ProcessHost(),
            settings=settings,
            tokenization=tokenization,
            request_log=RequestLog(is_on=not engine_args.disable_log_requests, max_chars=engine_args.max_log_len),
        )

    def __repr__(self) -> str:
        state = "dead" if self.errored else "stopped" if self._is_stopped else "running" if self._is_started else "new"
        return f"<AsyncLLMEngine {self._config.model.served_model_name} {state} {len(self._outputs)} requests>"

    # -- requests

    async def generate(
        self,
        prompt: Prompt | None,
        sampling_params: SamplingParams,
        request_id: str,
        prompt_token_ids: Sequence[int] | None = None,
        *,
        priority: int = 0,
    ) -> AsyncGenerator[RequestOutput, None]:
        """The request's outputs as it grows; `sampling_params.output_kind` says what each carries.

        The request begins with the first iteration. Leaving early, by `break`, `aclose` or cancellation, aborts it.
        Outputs that the consumer is too late for are joined, never lost. Raises InvalidRequestError (ContextLengthError
        and UnsupportedError are two) for a bad request, EngineGenerateError when it alone fails, EngineDeadError when
        all do.
        """
        stream = await self.add_request(
            request_id, prompt, sampling_params, prompt_token_ids=prompt_token_ids, priority=priority
        )
        try:
            async for output in stream:
                yield output
        finally:
            stream.close()

    async def add_request(
        self,
        request_id: str,
        prompt: Prompt | None,
        params: SamplingParams,
        arrival_time: float | None = None,
        prompt_token_ids: Sequence[int] | None = None,
        *,
        priority: int = 0,
    ) -> RequestStream:
        """Queue a request now and iterate over its outputs later. Cancelled meanwhile, it leaves nothing behind.

        `arrival_time` (seconds since the epoch) is when the caller got it, for the metrics and the order of equals.
        Raises as `generate` does, and OverloadedError when too many requests are open.
        """
        await self.start_background_loop()
        self._inputs.check(request_id, params, priority=priority)
        self._check_capacity()
        arrival_time = self._now() if arrival_time is None else arrival_time
        stream, progress = self._open_stream(request_id, params, arrival_time=arrival_time)
        try:
            prepared = await self._inputs.prepare(prompt, prompt_token_ids=prompt_token_ids)
            progress.set_prompt(
                prepared.text,
                token_ids=prepared.token_ids,
                decoder=self._inputs.decoder(params),
                eos_token_ids=self._inputs.eos_token_ids(),
            )
            if not progress.is_finished:  # nobody aborted it while it was tokenized
                self._request_log.received(request_id, prepared)
                await self._core.add(
                    self._inputs.core_request(
                        progress.core_id, prepared, params, arrival_time=arrival_time, priority=priority
                    )
                )
        except BaseException:
            self._outputs.discard(progress)
            raise
        return stream

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End one request or several; returns when the core has freed their blocks. Unknown and ended ones are ignored.

        A consumer gets a last output, finished, with the reason "abort" and what had been generated.
        """
        request_ids = [request_id] if isinstance(request_id, str) else list(request_id)
        core_ids = self._outputs.abort(request_ids, now=self._now())
        if core_ids and self._client is not None:
            with contextlib.suppress(EngineDeadError):  # a dead core holds no blocks
                await self._client.abort(core_ids)

    # -- what it is

    @property
    def tokenization(self) -> TokenizationService:
        """Knows the model as `model_config.served_model_name` once the engine has started."""
        return self._tokenization

    async def get_model_config(self) -> ModelConfig:
        return self._config.model

    async def get_tokenizer(self) -> Tokenizer:
        """The tokenizer in use; starts the engine."""
        await self.start_background_loop()
        return self._tokenization.tokenizer(self._config.model.served_model_name)

    def default_sampling_params(self) -> SamplingParams:
        """What the model's generation_config.json recommends, over our own defaults; `max_tokens` is the rest of the
        context."""
        defaults = self._config.model.sampling_defaults
        named = {
            "temperature": defaults.temperature,
            "top_p": defaults.top_p,
            "top_k": defaults.top_k,
            "repetition_penalty": defaults.repetition_penalty,
        }
        given = {name: value for name, value in named.items() if value is not None}
        return msgspec.structs.replace(SamplingParams(max_tokens=None), **given)

    async def get_num_unfinished_requests(self) -> int:
        return len(self._outputs)

    def statistics(self) -> EngineStatistics:
        core = self._client.statistics if self._client is not None else CoreStatistics()
        return engine_statistics(core, num_unfinished=len(self._outputs))

    async def reset_prefix_cache(self) -> bool:
        """Forget every cached prefix; False, and nothing forgotten, while requests hold blocks."""
        await self.start_background_loop()
        return bool(await self._core.call("reset_prefix_cache"))

    async def check_integrity(self) -> None:
        """Have the core check its own accounts; raises EngineError with what does not agree."""
        await self.start_background_loop()
        await self._core.call("check_integrity")

    async def check_health(self) -> None:
        """Raises EngineDeadError when the core has died, was killed because it hung, or has been shut down."""
        if self._dead_error is not None:
            raise copy_of(self._dead_error)
        if self._is_stopped:
            raise _shut_down()

    @property
    def core_pid(self) -> int | None:
        """The core's process; None before the start, and for a core in this process."""
        return self._host.pid

    @property
    def is_running(self) -> bool:
        return self._is_started and not self._is_stopped and self._dead_error is None

    @property
    def is_stopped(self) -> bool:
        """Shut down or dead: it answers nothing any more."""
        return self._is_stopped or self.errored

    @property
    def errored(self) -> bool:
        return self._dead_error is not None

    @property
    def dead_error(self) -> EngineDeadError | None:
        """Why the engine died, its `__cause__` being the core's own error; None while it lives."""
        return self._dead_error

    # -- its life

    async def start_background_loop(self) -> None:
        """Start, or wait for the start under way. Raises EngineDeadError when it fails, or has been shut down.

        Cancelling this leaves the start going on, for whoever else waits; `shutdown_background_loop` ends it.
        """
        if self._is_started and self._loop is asyncio.get_running_loop() and not self.is_stopped:
            return
        self._refuse_when_over()
        if self._starting is None:
            self._loop = asyncio.get_running_loop()
            self._starting = self._owner.spawn(self._start(), name="headrace-engine-start")
        await asyncio.wait([self._starting])
        self._refuse_when_over()
        self._starting.result()  # raises what is a defect of ours

    async def shutdown_background_loop(self, *, drain_timeout_s: float = 0.0) -> None:
        """End the engine: no process, thread or task of it is left. Idempotent.

        Open requests have `drain_timeout_s` to finish; those still open then are aborted. New ones are refused.
        Cancelled meanwhile, it kills the core instead of waiting for it.
        """
        self._is_stopped = True
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(drain_timeout_s):
                    await self._is_idle.wait()
        finally:
            self._outputs.abort_all(now=self._now())
            await self._end_parts()

    async def _end_parts(self) -> None:
        """Each part ends, whatever becomes of the others; the last pushed goes first."""
        async with contextlib.AsyncExitStack() as parts:
            if self._owns_tokenization:
                parts.push_async_callback(self._tokenization.aclose)
            if self._client is not None:
                parts.push_async_callback(self._client.aclose, timeout_s=self._settings.shutdown_timeout_s)
            parts.push_async_callback(self._owner.aclose)

    async def __aenter__(self) -> Self:
        try:
            await self.start_background_loop()
        except BaseException:
            await self.shutdown_background_loop()
            raise
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.shutdown_background_loop()

    async def _start(self) -> None:
        """The tokenizer loads while the core does."""
        self._client = CoreClient(
            host=self._host,
            hang_timeout_s=self._settings.hang_timeout_s,
            on_step=self._apply_step,
            on_death=self._die,
        )
        try:
            await self._client.start(msgspec.json.encode(self._config))
            await self._load_tokenizer()
            await self._client.wait_ready(timeout_s=self._settings.start_timeout_s)
        except HeadraceError as error:
            self._dead_error = self._dead_error or _did_not_start(error)
            await self._client.aclose(timeout_s=0.0)
        else:
            self._is_started = True

    async def _load_tokenizer(self) -> None:
        model = self._config.model
        try:
            self._tokenization.tokenizer(model.served_model_name)
        except ModelNotFoundError:
            await self._tokenization.load(model.served_model_name, model.tokenizer)

    @property
    def _core(self) -> CoreClient:
        assert self._client is not None
        return self._client

    def _refuse_when_over(self) -> None:
        if self._dead_error is not None:
            raise copy_of(self._dead_error)
        if self._is_stopped:
            raise _shut_down()
        if self._loop is not None and self._loop is not asyncio.get_running_loop():
            raise EngineError("this engine runs on another event loop; build one engine for each loop")

    def _check_capacity(self) -> None:
        limit = self._settings.max_num_requests
        if len(self._outputs) >= limit:
            raise OverloadedError(f"{limit} requests are open, as many as max_num_requests allows; try again later")

    def _open_stream(
        self, request_id: str, params: SamplingParams, *, arrival_time: float
    ) -> tuple[RequestStream, RequestProgress]:
        stream = RequestStream(on_close=self._leave)
        progress = RequestProgress(
            request_id=request_id,
            core_id=f"{request_id}#{next(self._core_numbers)}",
            params=params,
            arrival_time=arrival_time,
            notify=stream.notify,
        )
        stream.attach(progress)
        self._outputs.add(progress)
        self._is_idle.clear()
        return stream, progress

    def _apply_step(self, deltas: Sequence[TokenDelta]) -> None:
        if to_abort := self._outputs.apply(deltas, now=self._now()):
            self._core.post_abort(to_abort)

    def _leave(self, progress: RequestProgress) -> None:
        """The consumer is gone."""
        if self._outputs.discard(progress):
            self._core.post_abort([progress.core_id])

    def _note_end(self, progress: RequestProgress) -> None:
        self._request_log.ended(progress)
        if len(self._outputs) == 0:
            self._is_idle.set()

    def _die(self, error: EngineDeadError) -> None:
        self._dead_error = self._dead_error or error
        self._outputs.fail_all(lambda: copy_of(error), now=self._now())

    def _now(self) -> float:
        """Seconds since the epoch that never jump back, as the monotonic clock runs."""
        return self._epoch_s + time.monotonic()


def _thread_host() -> ThreadHost:
    from headrace.engine.core import EngineCore  # imports torch, which the front end else never needs

    return ThreadHost(build_core=EngineCore)


def _shut_down() -> EngineDeadError:
    return EngineDeadError("the engine was shut down")


def _did_not_start(error: HeadraceError) -> EngineDeadError:
    dead = EngineDeadError(f"the engine did not start: {error.message}")
    dead.__cause__ = error
    return dead
