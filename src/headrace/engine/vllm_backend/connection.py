"""A `CoreConnection` whose core is vLLM's AsyncLLM. One task for each request; everything on the front end's loop."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import cast

from headrace.aio.tasks import TaskOwner
from headrace.engine.client.core_connection import MakeConnection, OnDeath, OnStep
from headrace.engine.config import AsyncEngineArgs
from headrace.engine.lora_request import LoRARequest
from headrace.engine.settings import FrontEndSettings
from headrace.engine.vllm_backend.deltas import answer_delta, embedding_delta, failure_delta
from headrace.engine.vllm_backend.engine_arguments import vllm_arguments
from headrace.engine.vllm_backend.library import VllmEngine, VllmLibrary, load_library
from headrace.engine.vllm_backend.request_parameters import VllmCall, vllm_call, vllm_lora
from headrace.engine.vllm_backend.statistics import VllmStatistics
from headrace.engine.wire.messages import AddRequest, CoreStatistics, Ready, TokenDelta
from headrace.errors import (
    EngineDeadError,
    EngineError,
    EngineGenerateError,
    EngineStalledError,
    HeadraceError,
    InvalidRequestError,
    SettingsError,
    UnsupportedError,
)

_WATCH_S = 1.0


class VllmConnection:
    """See `CoreConnection`; the methods' contracts are there.

    vLLM says neither when a request begins to run nor when an abort has freed its blocks: requests that run count as
    waiting until their first token, and `abort` returns when vLLM has been told.
    """

    def __init__(
        self,
        arguments: Mapping[str, object],
        *,
        step_timeout_s: float,
        on_step: OnStep,
        on_death: OnDeath,
        load: Callable[[], VllmLibrary] = load_library,
    ) -> None:
        """`arguments` are those of vLLM's AsyncEngineArgs; `load` imports vLLM."""
        self._arguments = arguments
        self._step_timeout_s = step_timeout_s
        self._on_step = on_step
        self._on_death = on_death
        self._load = load
        self._stats = VllmStatistics()
        self._owner = TaskOwner("vLLM backend")
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="headrace-vllm")
        self._building: Future[tuple[VllmLibrary, VllmEngine]] | None = None
        self._library: VllmLibrary | None = None
        self._engine: VllmEngine | None = None
        self._ending: Future[None] | None = None
        self._is_closing = False
        self._started_s = 0.0
        self._last_output_s = 0.0

    def __repr__(self) -> str:
        return f"<VllmConnection {'ready' if self._engine is not None else 'not ready'} {len(self._tasks)} requests>"

    @property
    def statistics(self) -> CoreStatistics:
        return self._stats.now

    async def start(self, config: bytes) -> None:  # noqa: ARG002 - vLLM was given its own arguments
        self._started_s = time.monotonic()
        self._building = self._executor.submit(self._build)

    async def wait_ready(self, *, timeout_s: float) -> Ready:
        assert self._building is not None
        try:
            async with asyncio.timeout(timeout_s):
                built = await asyncio.shield(asyncio.wrap_future(self._building))
        except TimeoutError:
            message = f"vLLM was not ready within {timeout_s:g} s; raise start_timeout_s if it needs longer"
            raise EngineDeadError(message) from None
        except HeadraceError as error:
            raise EngineDeadError(error.message) from error
        except Exception as error:
            raise EngineDeadError(f"vLLM did not start: {error}") from error
        self._library, self._engine = built
        self._owner.spawn(self._watch(), name="headrace-vllm-watch")
        return Ready(
            num_blocks=self._stats.num_blocks,
            block_size=self._stats.block_size,
            load_s=time.monotonic() - self._started_s,
        )

    async def add(self, request: AddRequest) -> None:
        if self._is_closing or self._engine is None:
            raise EngineDeadError("the engine was shut down")
        if not self._tasks:
            self._last_output_s = time.monotonic()
        task = self._owner.spawn(self._serve(request, self._engine), name=f"headrace-vllm-{request.request_id}")
        self._tasks[request.request_id] = task
        task.add_done_callback(lambda _: self._tasks.pop(request.request_id, None))

    def post_abort(self, core_ids: Sequence[str]) -> None:
        for core_id in core_ids:
            if (task := self._tasks.get(core_id)) is not None:
                task.cancel()  # vLLM aborts a request whose generator is left

    async def abort(self, core_ids: Sequence[str]) -> None:
        tasks = [self._tasks[core_id] for core_id in core_ids if core_id in self._tasks]
        self.post_abort(core_ids)
        if tasks:
            await asyncio.wait(tasks)

    async def call(self, method: str, *arguments: object, timeout_s: float | None = None) -> object:
        try:
            async with asyncio.timeout(timeout_s):
                return await self._translated(self._method(method, arguments))
        except TimeoutError:
            raise EngineError(f"vLLM did not answer {method} within {timeout_s:g} s") from None

    async def collective_rpc(
        self,
        method: str | Callable[..., object],
        *,
        timeout_s: float | None = None,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> list[object]:
        engine = self._living()
        call = engine.collective_rpc(method, timeout_s, tuple(args), dict(kwargs or {}))
        return cast("list[object]", await self._translated(call))

    def check_progress(self) -> None:
        silent_s = time.monotonic() - self._last_output_s
        if self._tasks and silent_s > self._step_timeout_s and not self._stats.now.sleep_level:
            raise EngineStalledError(f"vLLM has given out nothing for {silent_s:.3g} s while requests are open")

    async def aclose(self, *, timeout_s: float) -> None:
        """A vLLM that is still loading cannot be stopped: it is shut down when it has, and this returns before."""
        self._is_closing = True
        try:
            await self._owner.aclose()
        finally:
            self._ending = self._ending or self._end_engine()
        await asyncio.wait([asyncio.wrap_future(self._ending)], timeout=max(timeout_s, 0.0))

    def _build(self) -> tuple[VllmLibrary, VllmEngine]:
        library = self._load()
        return library, library.build_engine(self._arguments, [self._stats])

    def _end_engine(self) -> "Future[None]":
        """In the thread that builds it, so that it comes after."""
        ending = self._executor.submit(_shut_down, self._building)
        self._executor.shutdown(wait=False)
        return ending

    async def _serve(self, request: AddRequest, engine: VllmEngine) -> None:
        library = self._loaded()
        try:
            call = vllm_call(request, library)
            if request.pooling_params is not None:
                await self._embed(request, call, engine)
            else:
                await self._answer(request, call, engine)
        except library.dead_error as error:
            self._die(error)
        except HeadraceError as error:
            self._on_step((failure_delta(request.request_id, error, kind=type(error).__name__),))
        except (ValueError, TypeError) as error:  # how vLLM refuses what it cannot do
            self._on_step((failure_delta(request.request_id, error, kind=InvalidRequestError.__name__),))
        except Exception as error:  # noqa: BLE001 - a foreign engine's failure is this request's, not ours
            self._on_step((failure_delta(request.request_id, error, kind=EngineGenerateError.__name__),))

    async def _answer(self, request: AddRequest, call: VllmCall, engine: VllmEngine) -> None:
        outputs = engine.generate(
            call.prompt, call.params, request.request_id, lora_request=call.lora_request, priority=request.priority
        )
        begins = TokenDelta(request_id=request.request_id, new_token_ids=(), is_running=True)
        is_first = True
        async with contextlib.aclosing(outputs):
            async for output in outputs:
                self._last_output_s = time.monotonic()
                delta = answer_delta(request.request_id, output, is_first=is_first)
                self._on_step((*([begins] if is_first else []), delta))
                is_first = False

    async def _embed(self, request: AddRequest, call: VllmCall, engine: VllmEngine) -> None:
        outputs = engine.encode(
            call.prompt, call.params, request.request_id, call.lora_request, priority=request.priority
        )
        async with contextlib.aclosing(outputs):
            async for output in outputs:
                self._last_output_s = time.monotonic()
                self._on_step((embedding_delta(request.request_id, output),))

    async def _watch(self) -> None:
        """vLLM tells of its death only to those who ask it for something."""
        engine = self._living()
        while not engine.errored:  # noqa: ASYNC110 - it has no event to wait for
            await asyncio.sleep(_WATCH_S)
        self._die(EngineError("vLLM reports that its engine core is gone"))

    def _die(self, cause: BaseException) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        error = EngineDeadError(f"vLLM died: {cause}")
        error.__cause__ = cause
        self._on_death(error)

    async def _translated(self, call: Awaitable[object]) -> object:
        """The call's result; what vLLM raises becomes ours."""
        try:
            return await call
        except self._loaded().dead_error as error:
            raise EngineDeadError(f"vLLM died: {error}") from error
        except (ValueError, TypeError) as error:
            raise InvalidRequestError(f"vLLM refuses it: {error}") from error
        except HeadraceError:
            raise
        except Exception as error:
            raise EngineError(f"vLLM failed: {error}") from error

    def _method(self, method: str, arguments: tuple[object, ...]) -> Awaitable[object]:
        engine = self._living()
        match method, arguments:
            case "sleep", (int(level),):
                return engine.sleep(level, mode="keep")
            case "wake_up", (tags,):
                return engine.wake_up(None if tags is None else list(cast("Sequence[str]", tags)))
            case "add_lora", (LoRARequest() as lora,):
                return engine.add_lora(vllm_lora(lora, self._loaded()))
            case "remove_lora", (int(lora_id),):
                return engine.remove_lora(lora_id)
            case "pin_lora", (int(lora_id),):
                return engine.pin_lora(lora_id)
            case "list_loras" | "is_sleeping" | "reset_prefix_cache" | "start_profile" | "stop_profile", ():
                return cast("Awaitable[object]", getattr(engine, method)())
        raise UnsupportedError(f"{method} is not supported by the backend 'vllm'", param=method)

    def _living(self) -> VllmEngine:
        if self._engine is None or self._is_closing:
            raise EngineDeadError("the engine was shut down")
        return self._engine

    def _loaded(self) -> VllmLibrary:
        assert self._library is not None
        return self._library


def _shut_down(building: "Future[tuple[VllmLibrary, VllmEngine]] | None") -> None:
    if building is not None and building.exception() is None:
        building.result()[1].shutdown()


def connect_to_vllm(engine_args: AsyncEngineArgs, settings: FrontEndSettings, *, in_process: bool) -> MakeConnection:
    """Raises SettingsError for settings that vLLM cannot follow; vLLM itself is imported at the start."""
    if in_process:
        message = "in_process runs our own core in a thread; vLLM's has a process of its own, so leave it out"
        raise SettingsError(message, param="in_process")
    arguments = vllm_arguments(engine_args)

    def connect(on_step: OnStep, on_death: OnDeath) -> VllmConnection:
        return VllmConnection(arguments, step_timeout_s=settings.step_timeout_s, on_step=on_step, on_death=on_death)

    return connect
