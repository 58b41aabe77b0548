"""The front end's side of the core: starts it, sends to it, hands its outputs on, and notices when it dies or hangs.

Knows no request: outputs go to `on_step`, the core's end to `on_death`, each on the event loop.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headrace.aio.tasks import TaskOwner
from headrace.engine.client.core_watch import DEFAULT_STEP_TIMEOUT_S, CoreWatch
from headrace.engine.client.host import CoreHost
from headrace.engine.core.calls import PATIENCE_S
from headrace.engine.wire.channel import AsyncChannel, ChannelClosedError
from headrace.engine.wire.errors import from_wire
from headrace.engine.wire.messages import (
    Abort,
    AddRequest,
    Call,
    CallResult,
    CoreStatistics,
    Failed,
    FromCore,
    Ready,
    Shutdown,
    Start,
    StepOutputs,
    ToCore,
    TokenDelta,
)
from headrace.engine.wire.remote_call import RemoteCall, pack_call, unpack_results
from headrace.errors import EngineDeadError, EngineError, EngineStalledError

_LOG = logging.getLogger(__name__)

_EXIT_TIMEOUT_S = 5.0
"""A core whose channel has closed is given this long to exit, so that its exit status can be told."""


@dataclass(frozen=True, slots=True)
class _WaitingCall:
    answer: asyncio.Future[CallResult]
    patience_s: float
    """The core may be silent for so long while it works on this."""


class CoreClient:
    """One core, once: `start`, then any number of sends, then `aclose`. Belongs to one event loop."""

    def __init__(
        self,
        *,
        host: CoreHost,
        hang_timeout_s: float,
        step_timeout_s: float = DEFAULT_STEP_TIMEOUT_S,
        on_step: Callable[[Sequence[TokenDelta]], None],
        on_death: Callable[[EngineDeadError], None],
    ) -> None:
        self.statistics = CoreStatistics()
        """The core's last word on itself."""
        self.dead_error: EngineDeadError | None = None
        self._host = host
        self._watch = CoreWatch(hang_timeout_s=hang_timeout_s, step_timeout_s=step_timeout_s)
        self._on_step = on_step
        self._on_death = on_death
        self._channel = AsyncChannel(on_message=self._receive, on_closed=self._notice_end)
        self._owner = TaskOwner("engine core")
        self._ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
        self._has_ended = asyncio.Event()
        self._call_ids = itertools.count()
        self._calls: dict[int, _WaitingCall] = {}
        self._failed: Failed | None = None
        self._is_closing = False
        self._tick_timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        state = "dead" if self.dead_error is not None else "closing" if self._is_closing else "open"
        return f"<CoreClient {state} {self._host!r}>"

    async def start(self, config: bytes) -> None:
        """Start the core with `config` (an EngineConfig as JSON); returns while it loads. After an error: `aclose`."""
        await self._channel.open(await self._host.start())
        self._channel.post(Start(config))

    async def wait_ready(self, *, timeout_s: float) -> Ready:
        """Returns when the core takes requests. Raises EngineDeadError, with the core's own error, if it fails."""
        try:
            async with asyncio.timeout(timeout_s):
                ready = await asyncio.shield(self._ready)
        except TimeoutError:
            message = f"the engine core was not ready within {timeout_s:g} s; raise start_timeout_s if it needs longer"
            raise EngineDeadError(message) from None
        self._tick()
        return ready

    async def add(self, request: AddRequest) -> None:
        """Send a request, waiting while the core is behind. Cancelled: nothing was sent. Raises EngineDeadError."""
        await self._send(request)

    def post_abort(self, core_ids: Sequence[str]) -> None:
        """Abort without waiting for the core."""
        self._channel.post(Abort(tuple(core_ids)))

    async def abort(self, core_ids: Sequence[str]) -> None:
        """Abort; returns when the core has freed their blocks. Sent at once, so cancelling this cancels no abort."""
        call_id = next(self._call_ids)
        self._channel.post(Abort(tuple(core_ids), call_id=call_id))
        await self._result(call_id)

    async def call(self, method: str, *arguments: object, timeout_s: float | None = None) -> object:
        """Run a method of `headrace.engine.core.calls` between two steps; its result, a list for any sequence or set.

        Raises the HeadraceError that the core raised, EngineError after `timeout_s`. The core is given that long, or
        the time in `PATIENCE_S`, even where it would be taken for hung. Cancelled or late, the call runs on in the core
        and its result is dropped.
        """
        call_id = next(self._call_ids)
        patience_s = timeout_s if timeout_s is not None else PATIENCE_S.get(method, 0.0)
        try:
            async with asyncio.timeout(timeout_s):
                await self._send(Call(call_id=call_id, method=method, arguments=arguments))
                return await self._result(call_id, patience_s=patience_s)
        except TimeoutError:
            raise EngineError(f"the engine core did not answer {method} within {timeout_s:g} s") from None

    async def collective_rpc(
        self,
        method: str | Callable[..., object],
        *,
        timeout_s: float | None = None,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> list[object]:
        """Call a worker's public method, or a function that is given the worker, on every worker; results by rank.

        Raises EngineError with what a worker raised, InvalidRequestError for what cannot be pickled; see `call` for
        `timeout_s`. Functions that are not importable in the core, those of `__main__` and lambdas, travel by value.
        """
        packed = pack_call(RemoteCall(method=method, timeout_s=timeout_s, args=tuple(args), kwargs=dict(kwargs or {})))
        results = await self.call("collective_rpc", packed, timeout_s=timeout_s)
        assert isinstance(results, bytes)
        return unpack_results(results)

    def check_progress(self) -> None:
        """Raises EngineStalledError when work waits and no step has finished for `step_timeout_s`."""
        if self._watch.is_stalled(patience_s=self._patience_s):
            seconds = self._watch.stalled_s
            message = f"the engine core has finished no step for {seconds:.3g} s while work waits; it may be hung"
            raise EngineStalledError(message)

    async def aclose(self, *, timeout_s: float) -> None:
        """End the core and return when nothing of it is left. Idempotent; calls that wait get EngineDeadError."""
        self._is_closing = True
        if self._tick_timer is not None:
            self._tick_timer.cancel()
        self._channel.post(Shutdown())
        hears_us = self._ready.done() or self._host.pid is None
        try:
            how = await self._host.stop(timeout_s=timeout_s if hears_us else 0.0)  # one that loads hears nothing
            _LOG.debug("the engine core %s", how)
        finally:
            await self._channel.aclose()
            await self._owner.aclose()
            self._fail_waiting(EngineDeadError("the engine was shut down"))
            self._has_ended.set()

    async def _send(self, message: ToCore) -> None:
        try:
            await self._channel.send(message)
        except ChannelClosedError as error:
            await self._has_ended.wait()  # until it is known how the core ended
            raise copy_of(self.dead_error or EngineDeadError("the engine was shut down")) from error

    async def _result(self, call_id: int, *, patience_s: float = 0.0) -> object:
        answer: asyncio.Future[CallResult] = asyncio.get_running_loop().create_future()
        self._calls[call_id] = _WaitingCall(answer, patience_s)
        if self._has_ended.is_set():
            self._fail_waiting(self.dead_error or EngineDeadError("the engine was shut down"))
        try:
            result = await answer
        finally:
            self._calls.pop(call_id, None)
        if result.error is not None:
            raise from_wire(result.error)
        return result.result

    def _receive(self, message: FromCore) -> None:
        self._watch.hear(message.statistics if isinstance(message, StepOutputs) else None)
        match message:
            case StepOutputs():
                self.statistics = message.statistics
                self._on_step(message.deltas)
            case CallResult():
                if (waiting := self._calls.get(message.call_id)) is not None and not waiting.answer.done():
                    waiting.answer.set_result(message)
            case Ready():
                # Until its first report nothing runs, and no request holds a block.
                self.statistics = CoreStatistics(num_blocks=message.num_blocks, num_free_blocks=message.num_blocks)
                if not self._ready.done():
                    self._ready.set_result(message)
            case Failed():
                self._failed = message

    @property
    def _patience_s(self) -> float:
        return max((waiting.patience_s for waiting in self._calls.values()), default=0.0)

    def _tick(self) -> None:
        """Measure the core's silence in short ticks, so that a held-up event loop is not taken for a silent core."""
        if self._is_closing or self._has_ended.is_set():
            return
        if self._watch.is_hung(patience_s=self._patience_s):
            silent_s = self._watch.silent_s
            message = f"the engine core hangs: no step finished and no sign of life for {silent_s:.3g} s"
            self._bury(message, cause=None, patience_s=0.0)
            return
        tick_s = self._watch.tick_s
        self._watch.tick(tick_s)
        self._tick_timer = asyncio.get_running_loop().call_later(tick_s, self._tick)

    def _notice_end(self, cause: BaseException | None) -> None:
        if self._is_closing or self._has_ended.is_set():
            return
        is_ours = cause is not None and not isinstance(cause, OSError)
        message = f"the engine's front end failed on an output of its core: {cause!r}" if is_ours else None
        self._bury(message, cause=cause, patience_s=_EXIT_TIMEOUT_S)

    def _bury(self, message: str | None, *, cause: BaseException | None, patience_s: float) -> None:
        if len(self._owner) == 0:
            self._owner.spawn(self._end(message, cause=cause, patience_s=patience_s), name="headrace-engine-core-end")

    async def _end(self, message: str | None, *, cause: BaseException | None, patience_s: float) -> None:
        how = await self._host.stop(timeout_s=patience_s)
        error = EngineDeadError(message or self._obituary(how))
        error.__cause__ = cause
        if self._failed is not None:
            trace = self._failed.traceback
            error.__cause__ = EngineError(f"in the core:\n{trace}") if trace else None
        _LOG.error("%s", error.message, exc_info=error.__cause__)
        self.dead_error = error
        self._has_ended.set()
        self._fail_waiting(error)
        self._on_death(error)

    def _obituary(self, how: str) -> str:
        if self._failed is not None:
            return f"the engine core failed: {self._failed.message}"
        return f"the engine core {how}; what it wrote to standard error may say why"

    def _fail_waiting(self, error: EngineDeadError) -> None:
        answers = [waiting.answer for waiting in self._calls.values()]
        waiting: list[asyncio.Future[Ready] | asyncio.Future[CallResult]] = [self._ready, *answers]
        for future in waiting:
            if not future.done():
                future.set_exception(copy_of(error))
                future.exception()  # whoever waits is told; nobody waiting is no defect


def copy_of(error: EngineDeadError) -> EngineDeadError:
    """For one more caller: an exception raised in several tasks mixes their tracebacks."""
    copy = EngineDeadError(error.message)
    copy.__cause__ = error.__cause__
    return copy
