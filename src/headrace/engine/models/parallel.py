"""The workers that share a model's layers, joined by torch.distributed: gloo on a CPU, NCCL on CUDA.

No process-wide default group is made: a group is an object that a worker owns and closes.
"""

import datetime as dt
import socket
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch's stubs export less than its documentation

from headrace.errors import EngineError, SettingsError

_JOIN_TIMEOUT = dt.timedelta(minutes=10)
"""Workers wait so long for each other: while one loads its weights the others may stand at the first collective. Who
starts them watches them more closely."""


class PeerLostError(EngineError):
    """A collective failed, nearly always because another worker ended: that one knows the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlace:
    """A worker's place in its group, and where the group meets: an address that the first worker listens at."""

    rank: int
    size: int
    host: str
    """An address of this machine that the other workers reach."""
    meeting_host: str
    meeting_port: int
    listener: socket.socket | None = None
    """Bound to the meeting point; for the first worker, which takes it over."""


class TorchGroup:
    """Implements `Parallel`. One thread uses it; `close` it before the process ends."""

    def __init__(self, place: GroupPlace, device: torch.device) -> None:
        """Returns when all workers have joined. Raises EngineError when they do not."""
        self.rank = place.rank
        self.size = place.size
        self._device = device
        try:
            self._store = _meet(place)
            self._group = _make_group(place, self._store, device)
        except (RuntimeError, ValueError) as error:  # torch's DistError is a RuntimeError
            message = f"worker {place.rank} of {place.size} found no group at {place.meeting_host}: {error}"
            raise PeerLostError(message) from error

    def __repr__(self) -> str:
        return f"TorchGroup(rank {self.rank} of {self.size}, {self._device})"

    def add_up(self, partial: Tensor) -> Tensor:
        """See `Parallel`. Changes `partial` in place. Raises PeerLostError."""
        try:
            self._group.allreduce([partial]).wait()
        except RuntimeError as error:
            raise PeerLostError(f"worker {self.rank} lost the others in a sum: {error}") from error
        return partial

    def least(self, value: int) -> int:
        """See `Parallel`. Raises PeerLostError."""
        values = torch.zeros(self.size, dtype=torch.int64, device=self._device)
        values[self.rank] = value
        return int(self.add_up(values).min())

    def close(self) -> None:
        """Leave the group: its threads and sockets are gone. Nothing else may be called after it."""
        self._group.shutdown()
        del self._group, self._store


class _Collectives(Protocol):
    """What is used of a process group, of either kind."""

    def allreduce(self, tensors: list[Tensor]) -> dist.Work: ...

    def shutdown(self) -> None: ...


def _meet(place: GroupPlace) -> TCPStore:
    listener = place.listener.detach() if place.listener is not None else None
    return TCPStore(
        place.meeting_host,
        place.meeting_port,
        world_size=place.size,
        is_master=place.rank == 0,
        timeout=_JOIN_TIMEOUT,
        wait_for_workers=False,
        master_listen_fd=listener,
    )


def _make_group(place: GroupPlace, store: TCPStore, device: torch.device) -> _Collectives:
    if device.type == "cuda":
        return _nccl_group(place, store)
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # the only way to name an address
    # An address, not this machine's name: containers often have names that resolve to nothing.
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=place.host)]
    options._timeout = _JOIN_TIMEOUT
    return cast("_Collectives", dist.ProcessGroupGloo(store, place.rank, place.size, options))


def _nccl_group(place: GroupPlace, store: TCPStore) -> _Collectives:
    if not dist.is_nccl_available():
        raise SettingsError("this torch has no NCCL, which workers on CUDA need", param="tensor_parallel_size")
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = _JOIN_TIMEOUT
    return cast("_Collectives", dist.ProcessGroupNCCL(store, place.rank, place.size, options))
