"""How many engines there are on a Ray cluster, and what each takes of it."""

from dataclasses import dataclass

from headrace.errors import SettingsError
from headrace.units import Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class RayServeSettings:
    """For `headrace serve --backend ray`."""

    min_replicas: int = 1
    """Engines that always run."""
    max_replicas: int | None = None
    """Engines that may run; none: as many as min_replicas."""
    target_queue: float = 8.0
    """Requests, running and waiting, per engine: with more, engines are added, with fewer, taken away."""
    upscale_delay_s: Seconds = 10.0
    """How long there must be more before engines are added."""
    downscale_delay_s: Seconds = 300.0
    """How long there must be fewer before engines are taken away."""
    num_cpus: float = 1.0
    """CPUs that are reserved for each engine."""
    num_gpus: float | None = None
    """GPUs that are reserved for each engine; none: its tensor_parallel_size where its device is cuda, or auto and the
    cluster has GPUs."""
    drain_timeout_s: Seconds = 120.0
    """Time for requests under way to end on an engine that is taken away."""

    def __post_init__(self) -> None:
        if self.min_replicas < 1:
            message = (
                f"min_replicas is {self.min_replicas}; give at least 1, since an engine tells how long the queue is"
            )
            raise SettingsError(message, param="min_replicas")
        if self.max_replicas is not None and self.max_replicas < self.min_replicas:
            message = f"max_replicas is {self.max_replicas}, less than min_replicas {self.min_replicas}"
            raise SettingsError(message, param="max_replicas")
        for name in ("target_queue", "upscale_delay_s", "downscale_delay_s", "drain_timeout_s"):
            if not getattr(self, name) > 0:
                raise SettingsError(f"{name} is {getattr(self, name)}; give more than 0", param=name)
        for name, least in (("num_cpus", self.num_cpus), ("num_gpus", self.num_gpus or 0.0)):
            if least < 0:
                raise SettingsError(f"{name} is {least}; give 0 or more", param=name)

    @property
    def most_replicas(self) -> int:
        return self.max_replicas if self.max_replicas is not None else self.min_replicas
