"""The engine's life: started once, by whoever needs it first, then running, then dead or shut down for good.

Owns the core's client and the tokenization layer. Of the requests it knows only that they end when the engine does.
"""

import asyncio
import contextlib
from typing import Literal, TypeAlias

import msgspec

from headrace.aio.bridge import make_async
from headrace.aio.tasks import TaskOwner
from headrace.engine.client.core_client import copy_of
from headrace.engine.client.core_connection import CoreConnection, MakeConnection
from headrace.engine.config import EngineConfig
from headrace.engine.front.request_intake import RequestIntake
from headrace.engine.front.stat_loggers import StatLoggers
from headrace.engine.front.tracing import RequestTracer
from headrace.engine.settings import FrontEndSettings
from headrace.engine.wire.messages import Ready
from headrace.errors import EngineDeadError, EngineError, HeadraceError, ModelNotFoundError
from headrace.tokenization import TokenizationService

LifeState: TypeAlias = Literal["new", "running", "stopped", "dead"]


class EngineLife:
    """Starts, watches and ends what one engine is made of. Belongs to the event loop that runs at the start."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        connect: MakeConnection,
        settings: FrontEndSettings,
        tokenization: TokenizationService,
        owns_tokenization: bool,
        requests: RequestIntake,
        loggers: StatLoggers,
        tracer: RequestTracer | None,
    ) -> None:
        self._config = config
        self._connect = connect
        self._settings = settings
        self._tokenization = tokenization
        self._owns_tokenization = owns_tokenization
        self._requests = requests
        self._loggers = loggers
        self._tracer = tracer
        self._owner = TaskOwner("engine")
        self._client: CoreConnection | None = None
        self._starting: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_started = False
        self._is_stopped = False
        self.dead_error: EngineDeadError | None = None
        """Why the engine died; None while it lives."""
        self.ready: Ready | None = None
        """What the core said of itself; None before the start."""

    def __repr__(self) -> str:
        return f"<EngineLife {self.state} {self._client!r}>"

    @property
    def state(self) -> LifeState:
        if self.dead_error is not None:
            return "dead"
        if self._is_stopped:
            return "stopped"
        return "running" if self._is_started else "new"

    @property
    def client(self) -> CoreConnection | None:
        """The way to the core; None before the start."""
        return self._client

    async def start(self) -> CoreConnection:
        """Start, or wait for the start under way. Raises EngineDeadError when it fails, or has been shut down.

        Cancelling this leaves the start going on, for whoever else waits; `shutdown` ends it.
        """
        if self._client is None or self.state != "running" or self._loop is not asyncio.get_running_loop():
            await self._wait_started()
        assert self._client is not None
        return self._client

    def check_health(self) -> None:
        """Raises EngineDeadError when the engine is dead or was shut down, EngineStalledError when its core makes no
        progress."""
        self._refuse_when_ended()
        if self._client is not None and self._is_started:
            self._client.check_progress()

    async def shutdown(self, *, drain_timeout_s: float) -> None:
        """Give open requests time to finish, abort those that are left, end every part. Idempotent.

        Raises EngineError, with nothing ended, on another event loop than the engine's that is open still.
        """
        self.check_loop()
        self._is_stopped = True
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(drain_timeout_s):
                    await self._requests.wait_idle()
        finally:
            self._requests.abort_all()
            await self._end_parts()

    def check_loop(self) -> None:
        """Raises EngineError on another event loop than the engine's, whose parts are not to be touched from here."""
        if self._is_elsewhere and self._loop is not None and not self._loop.is_closed():
            raise _runs_elsewhere()

    @property
    def _is_elsewhere(self) -> bool:
        return self._loop is not None and self._loop is not asyncio.get_running_loop()

    async def _wait_started(self) -> None:
        self._refuse_when_over()
        if self._starting is None:
            self._loop = asyncio.get_running_loop()
            self._starting = self._owner.spawn(self._start(), name="headrace-engine-start")
        await asyncio.wait([self._starting])
        self._refuse_when_over()
        self._starting.result()  # raises what is a defect of ours

    async def _start(self) -> None:
        """The tokenizer loads while the core does."""
        self._client = self._connect(self._requests.apply, self._die)
        self._requests.connect(self._client)
        try:
            await self._client.start(msgspec.json.encode(self._config))
            await self._load_tokenizer()
            self.ready = await self._client.wait_ready(timeout_s=self._settings.start_timeout_s)
        except HeadraceError as error:
            self.dead_error = self.dead_error or _did_not_start(error)
            await self._client.aclose(timeout_s=0.0)
        else:
            self._is_started = True
            self._owner.spawn(self._log_stats(), name="headrace-engine-stats")

    async def _log_stats(self) -> None:
        while True:
            await asyncio.sleep(self._settings.stats_interval_s)
            self._loggers.log()

    async def _load_tokenizer(self) -> None:
        model = self._config.model
        try:
            self._tokenization.tokenizer(model.served_model_name)
        except ModelNotFoundError:
            await self._tokenization.load(model.served_model_name, model.tokenizer)

    async def _end_parts(self) -> None:
        """Each part ends, whatever becomes of the others; the last pushed goes first."""
        async with contextlib.AsyncExitStack() as parts:
            if self._tracer is not None:
                parts.push_async_callback(make_async(self._tracer.close))
            if self._owns_tokenization:
                parts.push_async_callback(self._tokenization.aclose)
            if self._client is not None:
                parts.push_async_callback(self._client.aclose, timeout_s=self._settings.shutdown_timeout_s)
            parts.push_async_callback(self._owner.aclose)

    def _refuse_when_ended(self) -> None:
        if self.dead_error is not None:
            raise copy_of(self.dead_error)
        if self._is_stopped:
            raise EngineDeadError("the engine was shut down")

    def _refuse_when_over(self) -> None:
        self._refuse_when_ended()
        if self._is_elsewhere:
            raise _runs_elsewhere()

    def _die(self, error: EngineDeadError) -> None:
        self.dead_error = self.dead_error or error
        self._requests.fail_all(error)


def _runs_elsewhere() -> EngineError:
    return EngineError("this engine runs on another event loop; build one engine for each loop")


def _did_not_start(error: HeadraceError) -> EngineDeadError:
    dead = EngineDeadError(f"the engine did not start: {error.message}")
    dead.__cause__ = error
    return dead
