"""The engine core as a Ray actor, which may run on another machine: it connects back over TCP, let in by a token.

What is said over the connection is not known here.
"""

import contextlib
import os
import socket
import threading
import time

from headrace.engine.client.host import OwnThread
from headrace.engine.client.ray_cluster import RayActor, RayCluster, RayNeeds, own_host
from headrace.engine.config import EngineConfig
from headrace.engine.core.loop import Core, serve_core
from headrace.engine.executor.ray import worker_needs
from headrace.engine.wire.channel import BlockingChannel
from headrace.engine.wire.token_socket import Door, DoorAddress, knock
from headrace.errors import EngineError

_CONNECT_TIMEOUT_S = 60.0


class CoreActor:
    """What runs in the actor's process."""

    def pid(self) -> int:
        return os.getpid()

    def serve(self, address: DoorAddress) -> bool:
        """Serve the front end behind the door to the end; False when the core failed."""
        sock = knock(address, number=0, timeout_s=_CONNECT_TIMEOUT_S)
        return serve_core(BlockingChannel(sock), build_core=_build_engine_core)


class RayHost:
    """See `CoreHost`. Ray ends the actor when this process ends, however that happens."""

    def __init__(self, config: EngineConfig, *, cluster: RayCluster) -> None:
        """`cluster` may be shared by several hosts."""
        self._config = config
        self._cluster = cluster
        self._is_entered = False
        self._actor: RayActor | None = None
        self._unclaimed: socket.socket | None = None
        """Of a start that was cancelled: nobody else closes it."""
        self._is_hurried = threading.Event()
        self._lock = threading.Lock()
        """One thread at a time starts or stops: a stop waits until the start that was cancelled is through."""

    def __repr__(self) -> str:
        return f"<RayHost {self._actor!r}>"

    @property
    def pid(self) -> int | None:
        """Of the actor's process, on whichever machine that is."""
        return self._actor.pid if self._actor is not None else None

    async def start(self) -> socket.socket:
        """See `CoreHost`. Raises SettingsError when there is no Ray, EngineError when the actor does not connect."""
        starting = OwnThread(self._start)
        try:
            sock = await starting.result()
        finally:
            starting.leave()
        self._unclaimed = None
        return sock

    async def stop(self, *, timeout_s: float) -> str:
        """See `CoreHost`."""
        stopping = OwnThread(lambda: self._stop(timeout_s=timeout_s))
        try:
            return await stopping.result()
        finally:
            self._is_hurried.set()
            stopping.leave()

    def _start(self) -> socket.socket:
        with self._lock, contextlib.ExitStack() as undo:
            self._cluster.enter()
            self._is_entered = True
            self._actor = self._cluster.start_actor(CoreActor, core_needs(self._config, self._cluster))
            door = Door(own_host())
            undo.callback(door.close)
            self._actor.serve(door.address)
            self._unclaimed = _admit(door, self._actor)
            return self._unclaimed

    def _stop(self, *, timeout_s: float) -> str:
        with self._lock:
            if self._unclaimed is not None:
                self._unclaimed.close()
            how = "was never started"
            if self._actor is not None:
                how = self._actor.end(timeout_s=timeout_s, is_hurried=self._is_hurried.is_set)
            if self._is_entered:
                self._is_entered = False
                self._cluster.leave()
            return how


def core_needs(config: EngineConfig, cluster: RayCluster) -> RayNeeds:
    """The core itself needs next to nothing; with the model in its own process, what a worker needs."""
    return worker_needs(config, cluster) if config.parallel.executor == "local" else RayNeeds()


def _admit(door: Door, actor: RayActor) -> socket.socket:
    deadline_s = time.monotonic() + _CONNECT_TIMEOUT_S
    while time.monotonic() < deadline_s:
        if (guest := door.admit(timeout_s=1.0)) is not None:
            return guest[0]
        if actor.has_ended:
            break
    raise EngineError(f"the engine core did not connect: {actor.end(timeout_s=0.0)}")


def _build_engine_core(config: EngineConfig) -> Core:
    from headrace.engine.core.engine_core import (
        EngineCore,  # torch, late: an import that fails is reported as any other failure
    )

    return EngineCore(config)
