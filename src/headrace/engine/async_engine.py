"""`AsyncLLMEngine`: the engine as its users see it, the front end of a core that runs in a process of its own.

A page of API over the parts: `engine_life` starts and ends it, `request_intake` holds its requests, `engine_operations`
asks the core. Everything here runs on one event loop, the one that was running when the engine started.
"""

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import NoReturn, Self, overload

from prometheus_client import CollectorRegistry

from headrace.engine.client.host import CoreHost
from headrace.engine.config import AsyncEngineArgs, EngineConfig, LoRAConfig, SchedulerConfig
from headrace.engine.configs import DecodingConfig, VllmConfig, vllm_config
from headrace.engine.embedding_outputs import EmbeddingRequestOutput
from headrace.engine.front.assembly import EngineParts, assemble, parts_for
from headrace.engine.front.input_processor import InputProcessor, Prompt
from headrace.engine.front.request_call import RequestCall
from headrace.engine.front.request_intake import OpenState
from headrace.engine.front.request_stream import RequestStream
from headrace.engine.front.stat_loggers import StatLogger
from headrace.engine.kv_events.config import KVEventsConfig
from headrace.engine.kv_events.sources import event_sources
from headrace.engine.lora_request import LoRARequest
from headrace.engine.model_config import ModelConfig
from headrace.engine.outputs import RequestOutput
from headrace.engine.parallel_config import ParallelConfig
from headrace.engine.pooling_params import PoolingParams
from headrace.engine.sampling_params import SamplingParams
from headrace.engine.settings import FrontEndSettings
from headrace.engine.statistics import EngineStatistics
from headrace.errors import EngineDeadError, InvalidRequestError, UnsupportedError
from headrace.tokenization import TokenizationService, Tokenizer


class AsyncLLMEngine:
    """Generates for many requests at once. Use it as an asynchronous context manager, or start and shut it down.

    Without a start the first request starts it. Once dead or shut down it stays so: build another one.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        host: CoreHost | None = None,
        settings: FrontEndSettings | None = None,
        tokenization: TokenizationService | None = None,
        parts: EngineParts | None = None,
    ) -> None:
        """`from_engine_args` is the usual way to build one, and gives the `parts`. Without them the core is in `host`.

        `tokenization` is shared and stays open when given; else the engine has its own and closes it.
        """
        self._config = config
        if parts is None:
            assert host is not None, "an engine needs a host for its core, or parts"
            parts = assemble(config, hosts=(host,), settings=settings, tokenization=tokenization)
        self._hosts = parts.hosts
        self._tokenization = parts.tokenization
        self._inputs = parts.inputs
        self._requests = parts.requests
        self._life = parts.life
        self._operations = parts.operations
        self._loggers = parts.loggers
        self._statistics = parts.statistics
        self._has_tracer = parts.has_tracer
        self.registry: CollectorRegistry = parts.registry
        """The engine's Prometheus metrics, and those of its tokenization layer where that is its own."""

    @classmethod
    def from_engine_args(
        cls,
        engine_args: AsyncEngineArgs,
        *,
        in_process: bool = False,
        settings: FrontEndSettings | None = None,
        tokenization: TokenizationService | None = None,
        registry: CollectorRegistry | None = None,
    ) -> Self:
        """Read the model's configuration (blocking, milliseconds); nothing starts yet.

        `in_process=True` (or the setting of that name) runs the core in a thread, for debugging. Metrics go to
        `registry`, which no other engine may share; to one of its own by default. Raises SettingsError.
        """
        settings = settings or FrontEndSettings(in_process=in_process)
        config, parts = parts_for(
            engine_args,
            in_process=in_process or settings.in_process,
            settings=settings,
            tokenization=tokenization,
            registry=registry,
        )
        return cls(config, parts=parts)

    def __repr__(self) -> str:
        name = self._config.model.served_model_name
        return f"<AsyncLLMEngine {name} {self._life.state} {len(self._requests)} requests>"

    # -- requests

    async def generate(
        self,
        prompt: Prompt | None,
        sampling_params: SamplingParams,
        request_id: str,
        prompt_token_ids: Sequence[int] | None = None,
        lora_request: LoRARequest | None = None,
        *,
        priority: int = 0,
        trace_headers: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """The request's outputs as it grows; `sampling_params.output_kind` says what each carries.

        The request begins with the first iteration. Leaving early, by `break`, `aclose` or cancellation, aborts it.
        Outputs that the consumer is too late for are joined, never lost. `trace_headers` with a traceparent make the
        request's span a child of that one. Raises InvalidRequestError (ContextLengthError and UnsupportedError are two)
        for a bad request, EngineGenerateError when it alone fails, EngineDeadError when all do.
        """
        if not isinstance(sampling_params, SamplingParams):
            _refuse_params("sampling_params", sampling_params, "generate takes SamplingParams, encode PoolingParams")
        stream = await self.add_request(
            request_id,
            prompt,
            sampling_params,
            prompt_token_ids=prompt_token_ids,
            lora_request=lora_request,
            trace_headers=trace_headers,
            priority=priority,
        )
        try:
            async for output in stream:
                yield output
        finally:
            stream.close()

    async def encode(
        self,
        prompt: Prompt | None,
        pooling_params: PoolingParams,
        request_id: str,
        prompt_token_ids: Sequence[int] | None = None,
        lora_request: LoRARequest | None = None,
        *,
        priority: int = 0,
        trace_headers: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[EmbeddingRequestOutput, None]:
        """The prompt's vector, in one output. Begins, ends and raises as `generate` does."""
        if not isinstance(pooling_params, PoolingParams):
            _refuse_params("pooling_params", pooling_params, "encode takes PoolingParams, generate SamplingParams")
        stream = await self.add_request(
            request_id,
            prompt,
            pooling_params,
            prompt_token_ids=prompt_token_ids,
            lora_request=lora_request,
            trace_headers=trace_headers,
            priority=priority,
        )
        try:
            async for output in stream:
                yield output
        finally:
            stream.close()

    @overload
    async def add_request(
        self,
        request_id: str,
        prompt: Prompt | None,
        params: SamplingParams,
        arrival_time: float | None = None,
        prompt_token_ids: Sequence[int] | None = None,
        lora_request: LoRARequest | None = None,
        trace_headers: Mapping[str, str] | None = None,
        prompt_adapter_request: object | None = None,
        priority: int = 0,
    ) -> RequestStream[RequestOutput]: ...

    @overload
    async def add_request(
        self,
        request_id: str,
        prompt: Prompt | None,
        params: PoolingParams,
        arrival_time: float | None = None,
        prompt_token_ids: Sequence[int] | None = None,
        lora_request: LoRARequest | None = None,
        trace_headers: Mapping[str, str] | None = None,
        prompt_adapter_request: object | None = None,
        priority: int = 0,
    ) -> RequestStream[EmbeddingRequestOutput]: ...

    async def add_request(
        self,
        request_id: str,
        prompt: Prompt | None,
        params: SamplingParams | PoolingParams,
        arrival_time: float | None = None,
        prompt_token_ids: Sequence[int] | None = None,
        lora_request: LoRARequest | None = None,
        trace_headers: Mapping[str, str] | None = None,
        prompt_adapter_request: object | None = None,
        priority: int = 0,
    ) -> RequestStream[RequestOutput] | RequestStream[EmbeddingRequestOutput]:
        """Queue a request now and iterate over its outputs later. Cancelled meanwhile, it leaves nothing behind.

        `arrival_time` (seconds since the epoch) is when the caller got it, for the metrics and the order of equals.
        Raises as `generate` does, OverloadedError when too many requests are open, and UnsupportedError for a prompt
        adapter.
        """
        if prompt_adapter_request is not None:
            _refuse("prompt_adapter_request", "prompt adapters are not built; use a LoRA adapter")
        await self._life.start()
        call = RequestCall(
            request_id=request_id,
            prompt=prompt,
            prompt_token_ids=prompt_token_ids,
            arrival_time=arrival_time,
            lora_request=lora_request,
            trace_headers=trace_headers,
            priority=priority,
        )
        if isinstance(params, PoolingParams):
            return await self._requests.add_embedding(call, params)
        return await self._requests.add(call, params)

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End one request or several; returns when the core has freed their blocks. Unknown and ended ones are ignored.

        A consumer gets a last output, finished, with the reason "abort" and what had been generated. Raises EngineError
        on another event loop than the engine's, and InvalidRequestError for what is neither an id nor several.
        """
        self._life.check_loop()
        await self._requests.abort(_ids(request_id))

    def request_state(self, request_id: str) -> OpenState | None:
        """ "waiting" or "running", as the core has it; None for a request that has ended or never was."""
        return self._requests.state(request_id)

    async def get_num_unfinished_requests(self) -> int:
        return len(self._requests)

    # -- what it is

    @property
    def tokenization(self) -> TokenizationService:
        """Knows the model as `model_config.served_model_name` once the engine has started."""
        return self._tokenization

    async def get_model_config(self) -> ModelConfig:
        return self._config.model

    async def get_vllm_config(self) -> VllmConfig:
        """All configs at once."""
        return vllm_config(self._config)

    async def get_kv_event_sources(self) -> dict[int, KVEventsConfig]:
        """Where each data-parallel rank publishes what its prefix cache holds; empty where none does. Once the engine
        has started, with the ports that the system chose."""
        ready = self._life.ready
        return event_sources(
            self._config.kv_events,
            num_ranks=self._config.parallel.data_parallel_size,
            bound=_addresses(ready.kv_events_endpoint if ready else None),
            bound_replays=_addresses(ready.kv_events_replay_endpoint if ready else None),
        )

    async def get_parallel_config(self) -> ParallelConfig:
        return self._config.parallel

    async def get_decoding_config(self) -> DecodingConfig:
        return DecodingConfig()

    async def get_scheduler_config(self) -> SchedulerConfig:
        return self._config.scheduler

    async def get_lora_config(self) -> LoRAConfig | None:
        """None when adapters are off."""
        return self._config.lora

    async def get_tokenizer(self, lora_request: LoRARequest | None = None) -> Tokenizer:
        """The tokenizer in use; starts the engine. Adapters share it: one that adds tokens is refused when it loads.

        Raises InvalidRequestError for a `lora_request` when adapters are off.
        """
        self._inputs.check_lora(lora_request)
        await self._life.start()
        return self._tokenization.tokenizer(self._config.model.served_model_name)

    async def get_input_preprocessor(self) -> InputProcessor:
        """What turns a prompt into token ids, by `prepare`; starts the engine."""
        await self._life.start()
        return self._inputs

    def default_sampling_params(self) -> SamplingParams:
        """What the model's generation_config.json recommends, over our own defaults; `max_tokens` is the rest of the
        context."""
        return self._inputs.default_sampling_params()

    # -- how it is

    async def check_health(self) -> None:
        """Raises EngineDeadError when the core has died, was killed because it hung, or has been shut down, and
        EngineStalledError when work waits and no step has finished for `step_timeout_s`."""
        self._life.check_health()

    def statistics(self) -> EngineStatistics:
        return self._statistics()

    async def do_log_stats(self, scheduler_outputs: object = None, model_output: object = None) -> None:
        """Have every stat logger report now. The arguments are of an older API; given, they are refused."""
        if scheduler_outputs is not None or model_output is not None:
            name = "model_output" if scheduler_outputs is None else "scheduler_outputs"
            _refuse(name, "the engine counts its steps itself")
        self._loggers.log()

    async def add_logger(self, name: str, logger: StatLogger) -> None:
        """From now on `logger` is told what happens. Raises InvalidRequestError for what is no logger, and when the
        name is taken."""
        self._loggers.add(name, logger)

    async def remove_logger(self, name: str) -> None:
        """Raises InvalidRequestError for an unknown name. The engine's own are "prometheus" and "logging"."""
        self._loggers.remove(name)

    async def is_tracing_enabled(self) -> bool:
        return self._has_tracer

    @property
    def core_pid(self) -> int | None:
        """The first core's process; None before the start, for a core in this process, and for one that is not ours."""
        return self._hosts[0].pid if self._hosts else None

    @property
    def is_running(self) -> bool:
        return self._life.state == "running"

    @property
    def is_stopped(self) -> bool:
        """Shut down or dead: it answers nothing any more."""
        return self._life.state in ("stopped", "dead")

    @property
    def errored(self) -> bool:
        return self._life.dead_error is not None

    @property
    def dead_error(self) -> EngineDeadError | None:
        """Why the engine died, its `__cause__` being the core's own error; None while it lives."""
        return self._life.dead_error

    # -- what an operator asks of it

    async def reset_prefix_cache(self, device: object = None) -> bool:
        """Forget every cached prefix; False, and nothing forgotten, while requests hold blocks, or with several
        data-parallel cores while any is open.

        There is one cache, where the model is: naming a `device` is refused.
        """
        if device is not None:
            _refuse("device", "there is one prefix cache, where the model is")
        return await self._operations.reset_prefix_cache()

    async def reset_mm_cache(self) -> None:
        """Forget cached images and sounds; prompts that hold any are refused, so there are none. Starts the engine."""
        await self._life.start()

    async def check_integrity(self) -> None:
        """Have the core check its own accounts; raises EngineError with what does not agree."""
        await self._operations.check_integrity()

    async def sleep(self, level: int = 1) -> None:
        """Give memory back: 1 keeps the weights where they are cheap, 2 drops them; both drop the KV cache.

        Requests that are running go on, and those that come begin, after `wake_up`, with the same outputs.
        """
        await self._operations.sleep(level)

    async def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Undo `sleep`, for "weights" or "kv_cache" or, by default, both; requests run when both are back."""
        await self._operations.wake_up(tags)

    async def is_sleeping(self) -> bool:
        """Whether anything that `sleep` gave away is still missing."""
        return await self._operations.is_sleeping()

    async def start_profile(self) -> None:
        """Begin to record with torch's profiler. Raises UnsupportedError where `profiler_dir` is not set."""
        await self._operations.start_profile()

    async def stop_profile(self) -> None:
        """Write what was recorded into `profiler_dir`, as a trace that Perfetto opens."""
        await self._operations.stop_profile()

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        """Load an adapter before a request asks for it; False when it was loaded already."""
        self._inputs.check_lora(lora_request)
        return await self._operations.add_lora(lora_request)

    async def remove_lora(self, lora_id: int) -> bool:
        """Forget an adapter; False when it was not loaded."""
        return await self._operations.remove_lora(lora_id)

    async def list_loras(self) -> set[int]:
        """The ids of the adapters that are loaded."""
        return await self._operations.list_loras()

    async def pin_lora(self, lora_id: int) -> bool:
        """Keep an adapter loaded, however long nobody uses it."""
        return await self._operations.pin_lora(lora_id)

    async def collective_rpc(
        self,
        method: str | Callable[..., object],
        timeout: float | None = None,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> list[object]:
        """Call a worker's method, or a function that is given the worker, on every worker; the results by rank.

        Runs between two steps. Raises EngineError with what a worker raised, or after `timeout` seconds.
        """
        return await self._operations.collective_rpc(method, timeout_s=timeout, args=args, kwargs=kwargs)

    # -- its life

    async def start_background_loop(self) -> None:
        """Start, or wait for the start under way. Raises EngineDeadError when it fails, or has been shut down.

        Cancelling this leaves the start going on, for whoever else waits; `shutdown_background_loop` ends it.
        """
        await self._life.start()

    async def shutdown_background_loop(self, *, drain_timeout_s: float = 0.0) -> None:
        """End the engine: no process, thread or task of it is left. Idempotent.

        Open requests have `drain_timeout_s` to finish; those still open then are aborted. New ones are refused.
        Cancelled meanwhile, it kills the core instead of waiting for it. Raises EngineError, with nothing ended, on
        another event loop than the engine's, unless that one is closed: then it ends the core.
        """
        await self._life.shutdown(drain_timeout_s=drain_timeout_s)

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


def _addresses(joined: str | None) -> list[str]:
    """As a core, or several, say them."""
    return joined.split(",") if joined else []


def _ids(request_id: str | Iterable[str]) -> list[str]:
    """As a caller gave them, who may give anything."""
    if isinstance(request_id, str):
        return [request_id]
    ids = list(request_id) if isinstance(request_id, Iterable) else [request_id]
    if not all(isinstance(each, str) for each in ids):
        raise InvalidRequestError(f"request_id is {request_id!r:.80}; give one id or several", param="request_id")
    return ids


def _refuse_params(name: str, value: object, wanted: str) -> NoReturn:
    raise InvalidRequestError(f"{name} is {value!r:.80}: {wanted}", param=name)


def _refuse(name: str, reason: str) -> NoReturn:
    raise UnsupportedError(f"{name} is not supported by this version: {reason}", param=name)
