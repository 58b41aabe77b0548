"""Requests that nobody has to iterate over: add one, ask how it stands, await its result, abort it.

Finished ones are remembered for a while. What the engine does is the engine's; here is only who asked for what.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, fields
from types import TracebackType
from typing import Self

import msgspec

from headrace.aio.tasks import TaskOwner
from headrace.engine.async_engine import AsyncLLMEngine
from headrace.engine.front.input_processor import Prompt
from headrace.engine.lora_request import LoRARequest
from headrace.engine.outputs import RequestOutput, RequestOutputKind
from headrace.engine.request_status import RequestStatus
from headrace.engine.sampling_params import SamplingParams
from headrace.engine.streaming_request import StreamingRequest
from headrace.errors import EngineGenerateError, HeadraceError, InvalidRequestError, OverloadedError, SettingsError
from headrace.units import Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestManagerSettings:
    """What a manager keeps. Raises SettingsError, naming the field."""

    max_open: int = 4096
    """Most requests that have not ended; one more is refused as overload."""
    max_finished: int = 1024
    """Most ended requests that are remembered, the oldest are forgotten first."""
    remember_s: Seconds = 600.0
    """How long an ended request is remembered."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                raise SettingsError(f"{field.name} is {value}; it must be above 0", param=field.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestManagerStatistics:
    num_open: int
    num_remembered: int
    """Ended requests whose status and result can still be asked for."""


class _Managed:
    """One request and where it stands, as far as the manager decides it."""

    def __init__(self, request: StreamingRequest) -> None:
        self.request = request
        self.final_status: RequestStatus | None = None
        self.output: RequestOutput | None = None
        self.error: HeadraceError | None = None
        self.has_ended = asyncio.Event()
        self.ended_s = 0.0
        self.task: asyncio.Task[None] | None = None


class RequestManager:
    """Runs requests on `engine`, which it neither starts nor ends. Belongs to one event loop; close it, or use it as an
    asynchronous context manager. Request ids are unique among the requests that it knows.
    """

    def __init__(self, engine: AsyncLLMEngine, settings: RequestManagerSettings | None = None) -> None:
        self._engine = engine
        self._settings = settings or RequestManagerSettings()
        self._owner = TaskOwner("request manager")
        self._open: dict[str, _Managed] = {}
        self._ended: OrderedDict[str, _Managed] = OrderedDict()
        """Oldest first."""

    def __repr__(self) -> str:
        return f"<RequestManager {len(self._open)} open, {len(self._ended)} remembered>"

    def statistics(self) -> RequestManagerStatistics:
        self._forget_old()
        return RequestManagerStatistics(num_open=len(self._open), num_remembered=len(self._ended))

    def add_request(
        self,
        request_id: str,
        prompt: Prompt | None,
        sampling_params: SamplingParams,
        prompt_token_ids: Sequence[int] | None = None,
        arrival_time: float | None = None,
        lora_request: LoRARequest | None = None,
    ) -> StreamingRequest:
        """Have it run; returns at once. A request that the engine refuses has the status `failed` soon after.

        Raises InvalidRequestError for an id that is in use or remembered and for what are no SamplingParams,
        OverloadedError when `max_open` are open.
        """
        given: object = sampling_params
        if not isinstance(given, SamplingParams):
            message = f"sampling_params must be SamplingParams, got {given!r:.80}"
            raise InvalidRequestError(message, param="sampling_params")
        self._forget_old()
        if request_id in self._open or request_id in self._ended:
            message = f"request_id {request_id!r} was given to a request that is open or remembered; choose another"
            raise InvalidRequestError(message, param="request_id")
        if len(self._open) >= self._settings.max_open:
            raise OverloadedError(f"{len(self._open)} requests are open, as many as max_open allows; try again later")
        arrived = time.time() if arrival_time is None else arrival_time
        managed = _Managed(StreamingRequest(request_id, prompt, sampling_params, arrived, lora_request))
        running = self._run(managed, arrival_time, prompt_token_ids)
        managed.task = self._owner.spawn(running, name=f"request {request_id}")
        self._open[request_id] = managed
        managed.task.add_done_callback(lambda task: self._settle(managed, task))
        return managed.request

    def abort_request(self, request_id: str) -> bool:
        """End it; its status is `cancelled` at once and the core frees its blocks soon. False when it had ended.

        Its result is what had been generated. Raises InvalidRequestError for an id that is not known.
        """
        managed = self._find(request_id)
        if managed.final_status is not None:
            return False
        managed.final_status = RequestStatus.CANCELLED
        if self._engine.request_state(request_id) is not None:
            self._owner.spawn(self._engine.abort(request_id), name=f"abort of request {request_id}")
        elif managed.task is not None:
            managed.task.cancel()  # the engine does not know of it yet
        return True

    def get_request_status(self, request_id: str) -> RequestStatus:
        """Where it stands at this moment. Raises InvalidRequestError for an id that is unknown, or forgotten by now."""
        managed = self._find(request_id)
        if managed.final_status is not None:
            return managed.final_status
        is_running = self._engine.request_state(request_id) == "running"
        return RequestStatus.RUNNING if is_running else RequestStatus.WAITING

    def get_request(self, request_id: str) -> StreamingRequest:
        """What was asked for. Raises InvalidRequestError as `get_request_status` does."""
        return self._find(request_id).request

    async def result(self, request_id: str) -> RequestOutput:
        """Its last output, when it has ended; any number of callers may wait.

        Raises what it failed with, InvalidRequestError for an unknown id, EngineGenerateError when it was aborted
        before the engine had it.
        """
        managed = self._find(request_id)
        await managed.has_ended.wait()
        if managed.error is not None:
            raise _copy_of(managed.error)
        if managed.output is None:
            raise EngineGenerateError(f"request {request_id!r} was aborted before the engine had it")
        return managed.output

    async def aclose(self) -> None:
        """Abort what is open and wait until it has ended. Idempotent."""
        for managed in self._open.values():
            managed.final_status = managed.final_status or RequestStatus.CANCELLED
        await self._owner.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _run(self, managed: _Managed, arrival_time: float | None, prompt_token_ids: Sequence[int] | None) -> None:
        request = managed.request
        try:
            stream = await self._engine.add_request(
                request.request_id,
                request.prompt,
                msgspec.structs.replace(request.sampling_params, output_kind=RequestOutputKind.FINAL_ONLY),
                arrival_time=arrival_time,
                prompt_token_ids=prompt_token_ids,
                lora_request=request.lora_request,
            )
            try:
                async for output in stream:
                    managed.output = output
            finally:
                stream.close()
        except HeadraceError as error:
            managed.error = error

    def _settle(self, managed: _Managed, task: "asyncio.Task[None]") -> None:
        """The request's task is over, however it ended."""
        if not task.cancelled() and (defect := task.exception()) is not None:
            managed.error = EngineGenerateError(f"request {managed.request.request_id!r} failed: {defect!r}")
            managed.error.__cause__ = defect
        managed.final_status = managed.final_status or _status_of(managed)
        managed.ended_s = asyncio.get_running_loop().time()
        managed.has_ended.set()
        request_id = managed.request.request_id
        self._ended[request_id] = self._open.pop(request_id)
        self._forget_old()

    def _find(self, request_id: str) -> _Managed:
        self._forget_old()
        managed = self._open.get(request_id) or self._ended.get(request_id)
        if managed is None:
            message = f"there is no request {request_id!r}: it was never added, or ended long ago"
            raise InvalidRequestError(message, param="request_id")
        return managed

    def _forget_old(self) -> None:
        now_s = asyncio.get_running_loop().time()
        while self._ended:
            oldest = next(iter(self._ended.values()))
            is_late = now_s - oldest.ended_s > self._settings.remember_s
            if not is_late and len(self._ended) <= self._settings.max_finished:
                return
            self._ended.popitem(last=False)


def _status_of(managed: _Managed) -> RequestStatus:
    """Of a request that ended by itself, or by somebody else than this manager."""
    if managed.error is not None:
        return RequestStatus.FAILED
    if managed.output is None:
        return RequestStatus.CANCELLED
    is_aborted = any(completion.finish_reason == "abort" for completion in managed.output.outputs)
    return RequestStatus.CANCELLED if is_aborted else RequestStatus.COMPLETED


def _copy_of(error: HeadraceError) -> HeadraceError:
    """For one more caller: an exception raised in several tasks mixes their tracebacks."""
    copy = type(error)(error.message, param=error.param, code=error.code, retry_after_s=error.retry_after_s)
    copy.__cause__ = error.__cause__
    return copy
