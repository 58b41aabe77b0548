"""The one place that talks to Ray: a connection to a cluster, places reserved in it, actors with one long call each.

Knows neither cores nor workers. Everything here blocks.
"""

import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from headrace.errors import EngineError, SettingsError

_PLACE_TIMEOUT_S = 120.0
"""A cluster that grows on demand needs a while to make room."""
_CREATE_TIMEOUT_S = 120.0
_REACH_TIMEOUT_S = 5.0
_KILL_TIMEOUT_S = 10.0
_MAX_CAUSE_CHARS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class RayNeeds:
    """What one actor takes of a machine."""

    num_cpus: int = 0
    num_gpus: int = 0

    @property
    def bundle(self) -> dict[str, float]:
        needs = {"CPU": float(self.num_cpus), "GPU": float(self.num_gpus)}
        return {name: amount for name, amount in needs.items() if amount}


class RayActor:
    """An actor and the call that is its life: when `serve` returns, it has done its work."""

    def __init__(self, ray: Any, handle: Any) -> None:
        self._ray = ray
        self._handle = handle
        self._life: Any = None
        self.pid = cast("int", self.call("pid"))

    def __repr__(self) -> str:
        return f"<RayActor pid={self.pid}>"

    def call(self, method: str, *args: object) -> object:
        """A short call, before `serve`. Raises EngineError with what it raised, or how the actor died."""
        try:
            result: object = self._ray.get(getattr(self._handle, method).remote(*args), timeout=_CREATE_TIMEOUT_S)
            return result
        except (self._ray.exceptions.RayError, TimeoutError) as error:
            raise EngineError(f"a Ray actor failed in {method}: {_cause(error)}") from error

    def serve(self, *args: object) -> None:
        """Begin the actor's life; returns at once."""
        self._life = self._handle.serve.remote(*args)

    @property
    def has_ended(self) -> bool:
        return self._waited(timeout_s=0.0)

    def end(self, *, timeout_s: float, is_hurried: Callable[[], bool] = lambda: False) -> str:
        """Wait for the end of its life, kill it after `timeout_s` or when hurried, and say how it ended. Idempotent."""
        deadline_s = time.monotonic() + timeout_s
        while not self._waited(timeout_s=min(0.2, max(0.0, deadline_s - time.monotonic()))):
            if time.monotonic() >= deadline_s or is_hurried():
                break
        how = self._how_it_ended()
        self._ray.kill(self._handle)  # also when its life is over: the process would stay
        if how is None:
            self._waited(timeout_s=_KILL_TIMEOUT_S)
        return f"(Ray actor, pid {self.pid}) {how or 'was killed because it did not end'}"

    def _waited(self, *, timeout_s: float) -> bool:
        if self._life is None:
            return True
        done, _ = self._ray.wait([self._life], timeout=timeout_s)
        return bool(done)

    def _how_it_ended(self) -> str | None:
        """None while it has not."""
        if self._life is None:
            return "was never used"
        try:
            went_well = self._ray.get(self._life, timeout=0.001)
        except TimeoutError:
            return None
        except self._ray.exceptions.RayError as error:
            return f"died: {_cause(error)}"
        return "ended" if went_well else "failed"


class RayCluster:
    """This process's connection to Ray. It connects on the first `enter` and leaves on the last `leave`.

    A connection that was there before is used, and left as it is.
    """

    def __init__(self, address: str | None) -> None:
        self._address = address
        self._num_users = 0
        self._is_ours = False
        self._lock = threading.Lock()
        self._ray: Any = None

    def __repr__(self) -> str:
        return f"RayCluster({self._address!r}, {self._num_users} users)"

    def enter(self) -> None:
        """Raises SettingsError when Ray is not installed or there is no cluster at the address."""
        with self._lock:
            if self._num_users == 0:
                self._ray = _import_ray()
                self._connect()
            self._num_users += 1

    def leave(self) -> None:
        """To be called once for each `enter`."""
        with self._lock:
            self._num_users -= 1
            if self._num_users == 0 and self._is_ours:
                self._is_ours = False
                self._ray.shutdown()

    def total(self, resource: str) -> float:
        """Of `CPU` or `GPU`, in the whole cluster."""
        return float(self._ray.cluster_resources().get(resource, 0.0))

    def reserve(self, needs: Sequence[RayNeeds]) -> "RayPlaces":
        """Places for actors, close together. Raises EngineError when the cluster makes no room in time."""
        bundles = [need.bundle for need in needs]
        group = self._ray.util.placement_group(bundles, strategy="PACK")
        if not group.wait(timeout_seconds=_PLACE_TIMEOUT_S):
            self._ray.util.remove_placement_group(group)
            total = f"{self.total('CPU'):g} CPUs and {self.total('GPU'):g} GPUs"
            message = f"the Ray cluster, of {total}, had no room for {bundles} within {_PLACE_TIMEOUT_S:g} s"
            raise EngineError(f"{message}; add machines or lower tensor_parallel_size")
        return RayPlaces(self._ray, group, needs)

    def start_actor(self, actor_class: type, needs: RayNeeds) -> RayActor:
        """Wherever there is room. `actor_class` has the methods `pid` and `serve`, and is importable everywhere."""
        return RayActor(self._ray, _created(self._ray, actor_class, needs, strategy=None))

    def _connect(self) -> None:
        if self._ray.is_initialized():
            return
        self._is_ours = True
        try:
            if self._address is None:
                self._find_or_start()
            else:
                _check_reachable(self._address)
                self._ray.init(address=self._address, configure_logging=False)
        except (OSError, ValueError) as error:
            message = f"ray_address is {self._address!r}: {error}; start the cluster, or name another address"
            raise SettingsError(message, param="ray_address") from error

    def _find_or_start(self) -> None:
        try:
            self._ray.init(address="auto", configure_logging=False)
        except ConnectionError:
            self._ray.init(address="local", configure_logging=False, include_dashboard=False)


class RayPlaces:
    """A placement group: one bundle for each actor."""

    def __init__(self, ray: Any, group: Any, needs: Sequence[RayNeeds]) -> None:
        self._ray = ray
        self._group = group
        self._needs = needs

    def start_actor(self, actor_class: type, *, place: int) -> RayActor:
        """See `RayCluster.start_actor`."""
        strategy = self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
            placement_group=self._group, placement_group_bundle_index=place
        )
        return RayActor(self._ray, _created(self._ray, actor_class, self._needs[place], strategy=strategy))

    def release(self) -> None:
        """Kills what still runs in it."""
        self._ray.util.remove_placement_group(self._group)


def own_host() -> str:
    """This machine's address in the cluster that this process belongs to."""
    host: str = _import_ray().util.get_node_ip_address()
    return host


def _created(ray: Any, actor_class: type, needs: RayNeeds, *, strategy: object) -> Any:
    options: dict[str, object] = {"num_cpus": needs.num_cpus, "num_gpus": needs.num_gpus, "max_restarts": 0}
    if strategy is not None:
        options["scheduling_strategy"] = strategy
    return ray.remote(actor_class).options(**options).remote()


def _check_reachable(address: str) -> None:
    """Raises OSError soon for an address where nobody listens, which takes Ray minutes; ValueError for Ray Client's."""
    if address.startswith("ray://"):
        raise ValueError("Ray Client is not built, since actors must reach this process; run it on a cluster's machine")
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=_REACH_TIMEOUT_S).close()


def _import_ray() -> Any:
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError as error:
        message = "Ray is asked for but not installed; pip install 'headrace[ray]', or use executor_backend=process"
        raise SettingsError(message, param="worker_use_ray") from error
    return ray


def _cause(error: Exception) -> str:
    """Ray's own words, from where they say why, without the advice that follows."""
    text = str(error)
    start = max(0, text.find("The actor is dead because"))
    return " ".join(text[start : start + _MAX_CAUSE_CHARS].split())
