"""The engine core's side of the channel: build the core, then drain messages, step and send outputs until told to end.

The same loop runs in the core's own process and, for debugging, in a thread. Knows neither tensors nor the event loop.
"""

import contextlib
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import msgspec

from headrace.engine.config import EngineConfig
from headrace.engine.core.calls import run_call
from headrace.engine.wire.channel import BlockingChannel, ChannelClosedError
from headrace.engine.wire.errors import to_wire
from headrace.engine.wire.messages import (
    Abort,
    AddRequest,
    Call,
    CallResult,
    CoreStatistics,
    Failed,
    Ready,
    Shutdown,
    Start,
    StepOutputs,
    ToCore,
    TokenDelta,
)
from headrace.errors import EngineError, HeadraceError, SettingsError

HEARTBEAT_S = 1.0
"""While idle the core shows this often that it lives."""

_FIRST_FRAME_TIMEOUT_S = 60.0


class Core(Protocol):
    """What the loop needs of an engine core. Every method is called by one thread."""

    @property
    def operations(self) -> object:
        """Has the methods that `core_calls` lists."""
        ...

    def add_request(self, request: AddRequest) -> None: ...

    def abort(self, request_ids: Sequence[str]) -> tuple[TokenDelta, ...]:
        """Free these requests; a last delta with the reason "abort" for each one that was live."""
        ...

    def has_work(self) -> bool: ...

    def step(self, *, announce: Callable[[tuple[TokenDelta, ...]], None]) -> tuple[TokenDelta, ...]:
        """`announce` is to be told, before the step is computed, which requests begin to run or were put back."""
        ...

    def take_moved(self) -> tuple[TokenDelta, ...]:
        """Which requests a call has put back to wait, once."""
        ...

    def check(self) -> None:
        """Called at least once a heartbeat while there is no work. Raises when a part of the core ended by itself."""
        ...

    def statistics(self) -> CoreStatistics: ...

    def ready(self, *, load_s: float) -> Ready:
        """What the front end is to know of a core that took so long to build."""
        ...

    def close(self) -> None:
        """End what the core started: threads, sockets, workers. The last call."""
        ...


BuildCore: TypeAlias = Callable[[EngineConfig], Core]


def serve_core(channel: BlockingChannel, *, build_core: BuildCore) -> bool:
    """Serve one front end from its `Start` to its `Shutdown` or its end. False when the core failed.

    Whatever goes wrong in the core is reported to the front end as `Failed`. Closes the core and the channel.
    """
    try:
        with contextlib.closing(_build(channel, build_core)) as core:
            CoreLoop(channel, core).run()
    except ChannelClosedError:
        return True
    except Exception as error:  # noqa: BLE001 - the outermost boundary of the core: the front end gets to know
        _report_failure(channel, error)
        return False
    else:
        return True
    finally:
        channel.close()


def _build(channel: BlockingChannel, build_core: BuildCore) -> Core:
    messages = channel.receive(timeout_s=_FIRST_FRAME_TIMEOUT_S)
    if len(messages) != 1 or not isinstance(messages[0], Start):
        raise EngineError(f"the core expected one Start message first, got {messages!r}")
    started_s = time.monotonic()
    config = msgspec.json.decode(messages[0].config, type=EngineConfig)
    core = build_core(config)
    try:
        channel.send(core.ready(load_s=time.monotonic() - started_s))
    except BaseException:
        core.close()
        raise
    return core


def _report_failure(channel: BlockingChannel, error: Exception) -> None:
    text = str(error) if isinstance(error, HeadraceError) else f"{type(error).__name__}: {error}"
    with contextlib.suppress(ChannelClosedError):  # nobody is left to be told
        # A wrong setting is the user's to mend: where it was noticed tells nothing.
        trace = "" if isinstance(error, SettingsError) else "".join(traceback.format_exception(error))
        channel.send(Failed(message=text, traceback=trace))


class CoreLoop:
    """Runs a core for one front end."""

    def __init__(self, channel: BlockingChannel, core: Core, *, heartbeat_s: float = HEARTBEAT_S) -> None:
        self._channel = channel
        self._core = core
        self._heartbeat_s = heartbeat_s
        self._is_ended = False

    def run(self) -> None:
        """Returns after a `Shutdown`. Raises ChannelClosedError when the front end is gone, and what the core does."""
        while True:
            self._handle_messages()
            if self._is_ended:
                return
            self._send_outputs(self._step())

    def _step(self) -> tuple[TokenDelta, ...]:
        if self._core.has_work():
            return self._core.step(announce=self._send_outputs)
        self._core.check()
        return ()

    def _handle_messages(self) -> None:
        """Take all that has arrived, waiting for one beat when there is nothing to compute."""
        wait_s = 0.0 if self._core.has_work() else self._heartbeat_s
        for message in self._channel.receive(timeout_s=wait_s):
            self._handle(message)

    def _handle(self, message: ToCore) -> None:
        match message:
            case AddRequest():
                self._add(message)
            case Abort():
                self._abort(message)
            case Call():
                self._call(message)
            case Shutdown():
                self._is_ended = True
            case Start():
                raise EngineError("the core got a second Start message")

    def _add(self, request: AddRequest) -> None:
        try:
            self._core.add_request(request)
        except HeadraceError as error:
            told = to_wire(error)
            refusal = TokenDelta(
                request_id=request.request_id,
                new_token_ids=(),
                finish_reason="error",
                error=told.message,
                error_kind=told.kind,
                error_param=told.param,
            )
            self._send_outputs((refusal,))

    def _abort(self, abort: Abort) -> None:
        self._send_outputs(self._core.abort(abort.request_ids))
        if abort.call_id is not None:
            self._channel.send(CallResult(call_id=abort.call_id))

    def _call(self, call: Call) -> None:
        """Statistics and states go first, so that whoever waits for the answer sees what the call has changed."""
        result = run_call(self._core.operations, call)
        self._send_outputs(self._core.take_moved())
        self._channel.send(result)

    def _send_outputs(self, deltas: tuple[TokenDelta, ...]) -> None:
        self._channel.send(StepOutputs(deltas=deltas, statistics=self._core.statistics()))
