"""What crosses between an executor and its workers, as typed messages, and the link that carries them.

Frames are msgpack with a length prefix, as on the channel between front end and core. One thread at each end.
"""

import socket
import time
from collections import deque
from collections.abc import Mapping
from typing import Generic, TypeAlias, TypeVar

import msgspec

from headrace.engine.core.step_plan import StepPlan, StepResult
from headrace.engine.wire.channel import FrameSplitter, encode_frame
from headrace.engine.wire.messages import WireError
from headrace.errors import EngineError

_RECEIVE_BYTES = 256 * 1024


class Launch(msgspec.Struct, tag=True, array_like=True, frozen=True, kw_only=True, gc=False):
    """The first message: load your part of the model of this `EngineConfig` (as JSON), meet the others, answer
    `Launched`."""

    config: bytes
    rank: int
    size: int
    host: str
    """The address that the others reach this worker at."""
    meeting_host: str
    meeting_port: int
    device_index: int
    """Of CUDA devices as this worker sees them."""


class Step(msgspec.Struct, tag=True, array_like=True, frozen=True, gc=False):
    """Run a plan. The first worker answers with `Stepped`, the others not at all."""

    plan: StepPlan
    drawn: Mapping[str, int]
    """The tokens that the first worker drew in the step before; the others have not seen them."""


class CallWorker(msgspec.Struct, tag=True, array_like=True, frozen=True, gc=False):
    """Call a method (`headrace.engine.wire.remote_call`), answered by `Called` with the same id."""

    call_id: int
    call: bytes


class Leave(msgspec.Struct, tag=True, array_like=True, frozen=True, gc=False):
    """End."""


ToWorker: TypeAlias = Launch | Step | CallWorker | Leave


class Launched(msgspec.Struct, tag=True, array_like=True, frozen=True, gc=False):
    num_blocks: int


class Stepped(msgspec.Struct, tag=True, array_like=True, frozen=True, gc=False):
    result: StepResult


class Called(msgspec.Struct, tag=True, array_like=True, frozen=True, kw_only=True, gc=False):
    call_id: int
    results: bytes | None = None
    error: WireError | None = None


class WorkerFailed(msgspec.Struct, tag=True, array_like=True, frozen=True, kw_only=True, gc=False):
    """The worker's last message."""

    error: WireError
    traceback: str
    is_peer_lost: bool
    """It failed because another worker did."""


FromWorker: TypeAlias = Launched | Stepped | Called | WorkerFailed

ReceivedT = TypeVar("ReceivedT")


class LinkClosedError(EngineError):
    """The other end is gone, or took nothing in time."""


class WorkerLink(Generic[ReceivedT]):
    """One end of a connection between an executor and a worker. `received` is the type of what comes in."""

    def __init__(self, sock: socket.socket, *, received: object) -> None:
        self._sock = sock
        self._frames = FrameSplitter()
        self._decoder: msgspec.msgpack.Decoder[ReceivedT] = msgspec.msgpack.Decoder(received)
        self._inbox: deque[ReceivedT] = deque()
        self.is_closed = False
        """By this end, or found closed by the other."""

    def fileno(self) -> int:
        return self._sock.fileno()

    def send(self, message: msgspec.Struct, *, timeout_s: float | None = None) -> None:
        self.send_frame(encode_frame(message), timeout_s=timeout_s)

    def send_frame(self, frame: bytes, *, timeout_s: float | None = None) -> None:
        """Raises LinkClosedError when the other end is gone, or does not take it all in time."""
        try:
            self._sock.settimeout(timeout_s)
            self._sock.sendall(frame)
        except OSError as error:
            raise LinkClosedError(f"a worker's link broke: {error}") from error

    def read(self) -> list[ReceivedT]:
        """The messages that what has arrived completes, waiting for something. At the end `is_closed` is set.

        Raises EngineError for what is no frame of ours.
        """
        try:
            self._sock.settimeout(None)
            chunk = self._sock.recv(_RECEIVE_BYTES)
        except OSError:  # a reset is an end like any other
            chunk = b""
        if not chunk:
            self.is_closed = True
        return [self._decoder.decode(frame) for frame in self._frames.feed(chunk)]

    def receive(self) -> ReceivedT:
        """The next message (blocking). Raises LinkClosedError at the end."""
        while not self._inbox:
            if self.is_closed:
                raise LinkClosedError("the other end of a worker's link is gone")
            self._inbox += self.read()
        return self._inbox.popleft()

    def close(self) -> None:
        """Idempotent."""
        self.is_closed = True
        self._sock.close()


def time_left_s(deadline_s: float | None) -> float | None:
    """Until `deadline_s` on the monotonic clock; None for no deadline, never below 0."""
    return None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
