"""Workers as Ray actors, on any machines of a cluster: each connects back, and is then a worker like any other.

A placement group keeps them close together; a step does not pass through Ray.
"""

import contextlib
import os
import socket
import time
from typing import cast

import msgspec

from headrace.engine.client.ray_cluster import RayActor, RayCluster, RayNeeds, RayPlaces, own_host
from headrace.engine.config import EngineConfig
from headrace.engine.executor.worker_group import GroupMember
from headrace.engine.executor.worker_wire import FromWorker, Launch, WorkerLink
from headrace.engine.wire.token_socket import Door, DoorAddress, knock
from headrace.errors import EngineError

_CONNECT_TIMEOUT_S = 60.0


class WorkerActor:
    """What runs in the actor's process."""

    def __init__(self) -> None:
        self._listener: socket.socket | None = None

    def pid(self) -> int:
        return os.getpid()

    def host(self) -> str:
        return own_host()

    def open_meeting_place(self) -> tuple[str, int]:
        """For the first worker: where the group meets."""
        self._listener = socket.create_server((own_host(), 0))
        port: int = self._listener.getsockname()[1]
        return own_host(), port

    def serve(self, address: DoorAddress, rank: int) -> bool:
        """Serve the executor behind the door to the end; False when the worker failed."""
        from headrace.engine.executor.worker_loop import serve_worker  # torch, which the executor needs not

        return serve_worker(knock(address, number=rank, timeout_s=_CONNECT_TIMEOUT_S), listener=self._listener)


class RayStarter:
    """See `WorkerStarter`."""

    def __init__(self, *, address: str | None) -> None:
        self._cluster = RayCluster(address)
        self._is_entered = False
        self._places: RayPlaces | None = None
        self._actors: list[RayActor] = []

    def __repr__(self) -> str:
        return f"RayStarter({len(self._actors)} actors)"

    def start(self, config: EngineConfig) -> list[tuple[GroupMember, Launch]]:
        self._cluster.enter()
        self._is_entered = True
        size = config.parallel.tensor_parallel_size
        needs = worker_needs(config, self._cluster)
        self._places = self._cluster.reserve([needs] * size)
        for rank in range(size):
            self._actors.append(self._places.start_actor(WorkerActor, place=rank))
        launches = _launches(config, self._actors)
        links = self._connect()
        return [
            (GroupMember(link, actor), launch)
            for link, actor, launch in zip(links, self._actors, launches, strict=True)
        ]

    def close(self) -> None:
        for actor in self._actors:
            actor.end(timeout_s=0.0)
        self._actors.clear()
        if self._places is not None:
            self._places.release()
            self._places = None
        if self._is_entered:
            self._is_entered = False
            self._cluster.leave()

    def _connect(self) -> list[WorkerLink[FromWorker]]:
        """Have every actor connect; their links by rank. Raises EngineError when one does not."""
        with contextlib.closing(Door(own_host())) as door:
            for rank, actor in enumerate(self._actors):
                actor.serve(door.address, rank)
            guests = _admit_all(door, self._actors)
        return [WorkerLink(guests[rank], received=FromWorker) for rank in range(len(self._actors))]


def worker_needs(config: EngineConfig, cluster: RayCluster) -> RayNeeds:
    """A GPU for each worker where they are wanted, or in doubt where there are enough; else a core."""
    wanted, size = config.execution.device, config.parallel.num_workers
    has_gpu = wanted == "cuda" or (wanted == "auto" and cluster.total("GPU") >= size)
    return RayNeeds(num_gpus=1) if has_gpu else RayNeeds(num_cpus=config.execution.cpu_threads or 1)


def _admit_all(door: Door, actors: list[RayActor]) -> dict[int, socket.socket]:
    guests: dict[int, socket.socket] = {}
    deadline_s = time.monotonic() + _CONNECT_TIMEOUT_S
    with contextlib.ExitStack() as undo:
        while len(guests) < len(actors):
            if (guest := door.admit(timeout_s=1.0)) is not None:
                sock, rank = guest
                undo.callback(sock.close)
                guests[rank] = sock
            elif lost := [actor for actor in actors if actor.has_ended]:
                raise EngineError(f"a worker did not connect: {lost[0].end(timeout_s=0.0)}")
            elif time.monotonic() > deadline_s:
                raise EngineError(f"{len(guests)} of {len(actors)} workers connected within {_CONNECT_TIMEOUT_S:g} s")
        undo.pop_all()
    return guests


def _launches(config: EngineConfig, actors: list[RayActor]) -> list[Launch]:
    meeting_host, meeting_port = cast("tuple[str, int]", actors[0].call("open_meeting_place"))
    packed = msgspec.json.encode(config)
    return [
        Launch(
            config=packed,
            rank=rank,
            size=len(actors),
            host=cast("str", actor.call("host")),
            meeting_host=meeting_host,
            meeting_port=meeting_port,
            device_index=0,  # an actor sees no other device than its own
        )
        for rank, actor in enumerate(actors)
    ]
