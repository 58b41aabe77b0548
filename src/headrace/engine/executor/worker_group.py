"""An executor's side of several workers: one plan to all, the outcome from the first, and who failed, if one did.

Knows links and handles, not how a worker was started. When a worker ends, the others soon fail too, because they wait
for it in the middle of a layer: the group waits a moment to tell the cause from its consequences.
"""

import contextlib
import select
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn, Protocol, TypeVar

from headrace.engine.core.step_plan import StepPlan, StepResult
from headrace.engine.executor.worker_wire import (
    Called,
    CallWorker,
    FromWorker,
    Launch,
    Launched,
    Leave,
    LinkClosedError,
    Step,
    Stepped,
    WorkerFailed,
    WorkerLink,
    time_left_s,
)
from headrace.engine.wire.channel import encode_frame
from headrace.engine.wire.errors import from_wire
from headrace.engine.wire.remote_call import RemoteCall, pack_call, unpack_results
from headrace.errors import EngineError, HeadraceError, SettingsError

_EXIT_TIMEOUT_S = 5.0
"""A worker that was told to leave, or whose link closed, is killed after this long."""
_LEAVE_TIMEOUT_S = 0.1
_CAUSE_TIMEOUT_S = 2.0
"""When a worker fails because it lost another, that one has so long to show how it ended."""

MessageT = TypeVar("MessageT", bound=FromWorker)


class WorkerHandle(Protocol):
    """A worker's process, wherever it runs."""

    def end(self, *, timeout_s: float) -> str:
        """Wait for its end, killing it after `timeout_s` (blocking): how it ended, for an error message. Idempotent."""
        ...


@dataclass(slots=True)
class GroupMember:
    """One worker, as its executor sees it; its rank is its place in the group."""

    link: WorkerLink[FromWorker]
    handle: WorkerHandle
    inbox: deque[FromWorker] = field(default_factory=deque)
    failure: WorkerFailed | None = None

    @property
    def is_lost(self) -> bool:
        return self.link.is_closed or self.failure is not None


class WorkerGroup:
    """All workers of one core, from their launch on. Not thread-safe. After an error other than a call's: `close`."""

    def __init__(self, members: Sequence[GroupMember], *, step_timeout_s: float) -> None:
        self._members = tuple(members)
        self._step_timeout_s = step_timeout_s
        self._drawn: dict[str, int] = {}
        self._num_calls = 0
        self._poll = select.poll()
        self._member_of = {member.link.fileno(): member for member in self._members}
        for fd in self._member_of:
            self._poll.register(fd, select.POLLIN)

    def __repr__(self) -> str:
        return f"WorkerGroup({len(self._members)} workers)"

    def launch(self, launches: Sequence[Launch]) -> int:
        """Have every worker load; the number of blocks that all of their KV caches have.

        Raises SettingsError for what a worker's hardware or checkpoint cannot do, EngineError when one ends.
        """
        for member, launch in zip(self._members, launches, strict=True):
            self._send(member, encode_frame(launch))
        return min(self._next(member, Launched, deadline_s=None).num_blocks for member in self._members)

    def execute(self, plan: StepPlan) -> StepResult:
        """See `Executor.execute`. Raises EngineError when a worker fails, ends or takes too long."""
        frame = encode_frame(Step(plan, self._drawn))
        for member in self._members:
            self._send(member, frame)
        deadline_s = time.monotonic() + self._step_timeout_s
        result = self._next(self._members[0], Stepped, deadline_s=deadline_s).result
        self._drawn = dict(result.token_ids)
        return result

    def check(self) -> None:
        """See `Executor.check`."""
        self._read(timeout_s=0.0)
        if any(member.is_lost for member in self._members):
            self._raise_failure("a worker failed")

    def call(self, call: RemoteCall) -> list[object]:
        """See `Executor.collective_rpc`. An answer that comes after the deadline is thrown away."""
        self._num_calls += 1
        frame = encode_frame(CallWorker(self._num_calls, pack_call(call)))
        for member in self._members:
            self._send(member, frame)
        deadline_s = None if call.timeout_s is None else time.monotonic() + call.timeout_s
        answers = [self._answer(member, call, deadline_s=deadline_s) for member in self._members]
        for answer in answers:
            if answer.error is not None:
                raise from_wire(answer.error)
        return [result for answer in answers for result in unpack_results(answer.results or b"")]

    def close(self) -> None:
        """Tell all to leave, and return when they are gone; those that stay are killed. Idempotent."""
        for member in self._members:
            self._dismiss(member)
        deadline_s = time.monotonic() + _EXIT_TIMEOUT_S
        for member in self._members:
            member.handle.end(timeout_s=time_left_s(deadline_s) or 0.0)

    def _dismiss(self, member: GroupMember) -> None:
        if not member.link.is_closed:
            self._poll.unregister(member.link.fileno())
            with contextlib.suppress(LinkClosedError):  # closing says the same
                member.link.send(Leave(), timeout_s=_LEAVE_TIMEOUT_S)
        member.link.close()

    def _answer(self, member: GroupMember, call: RemoteCall, *, deadline_s: float | None) -> Called:
        while True:
            try:
                answer = self._next(member, Called, deadline_s=deadline_s)
            except _LateError:
                raise TimeoutError(f"{call.name} did not return on every worker in time: {call.timeout_s} s") from None
            if answer.call_id == self._num_calls:  # else the answer to a call that was given up
                return answer

    def _send(self, member: GroupMember, frame: bytes) -> None:
        try:
            member.link.send_frame(frame, timeout_s=self._step_timeout_s)
        except LinkClosedError:
            self._raise_failure(f"{self._name(member)} takes no messages")

    def _next(self, member: GroupMember, kind: type[MessageT], *, deadline_s: float | None) -> MessageT:
        """The next message of that kind from this worker, while none fails. Raises _LateError at the deadline."""
        while True:
            while member.inbox:
                if isinstance(message := member.inbox.popleft(), kind):
                    return message
            self._take_in(deadline_s=deadline_s)

    def _take_in(self, *, deadline_s: float | None) -> None:
        """Wait for something from any worker. Raises EngineError if it is a failure or an end."""
        if not self._read(timeout_s=time_left_s(deadline_s)):
            message = f"the workers hang: they did not finish a step within {self._step_timeout_s:g} s"
            raise _LateError(f"{message}; raise worker_timeout_s if a step may take longer")
        if any(member.is_lost for member in self._members):
            self._raise_failure("a worker failed")

    def _read(self, *, timeout_s: float | None) -> bool:
        """Take in what workers have sent, waiting for something; False if nothing came in time."""
        events = self._poll.poll(None if timeout_s is None else timeout_s * 1000)
        for fd, _ in events:
            member = self._member_of[fd]
            for message in member.link.read():
                if isinstance(message, WorkerFailed):
                    member.failure = message
                else:
                    member.inbox.append(message)
            if member.link.is_closed:
                self._poll.unregister(fd)
        return bool(events)

    def _raise_failure(self, otherwise: str) -> NoReturn:
        """Raise what ended the group: a worker's own end before a failure that may follow from it."""
        deadline_s = time.monotonic() + _CAUSE_TIMEOUT_S
        while self._first_cause() is None and self._is_anyone_there and self._read(timeout_s=time_left_s(deadline_s)):
            pass
        member = self._first_cause() or next((member for member in self._members if member.is_lost), None)
        if member is None:
            raise EngineError(otherwise)
        if member.failure is None:
            how = member.handle.end(timeout_s=_EXIT_TIMEOUT_S)
            raise EngineError(f"{self._name(member)} {how}; what it wrote to standard error may say why")
        raise self._failure(member, member.failure) from EngineError(
            f"in {self._name(member)}:\n{member.failure.traceback}"
        )

    @property
    def _is_anyone_there(self) -> bool:
        return any(not member.link.is_closed for member in self._members)

    def _first_cause(self) -> GroupMember | None:
        """A worker that ended or failed for a reason of its own."""
        silent = (member for member in self._members if member.link.is_closed and member.failure is None)
        own = (member for member in self._members if member.failure is not None and not member.failure.is_peer_lost)
        return next(silent, None) or next(own, None)

    def _failure(self, member: GroupMember, failure: WorkerFailed) -> HeadraceError:
        error = from_wire(failure.error)
        if isinstance(error, SettingsError):
            return error
        return EngineError(f"{self._name(member)} failed: {error.message}")

    def _name(self, member: GroupMember) -> str:
        return f"worker {self._members.index(member)} of {len(self._members)}"


class _LateError(EngineError):
    """Nothing came before the deadline."""
