"""Where an engine's cores run, and the way to them: one or several, in processes, as Ray actors or in threads."""

from collections.abc import Sequence

from headrace.engine.client.core_client import CoreClient
from headrace.engine.client.core_connection import CoreConnection, MakeConnection, OnDeath, OnStep
from headrace.engine.client.data_parallel import DataParallelClient
from headrace.engine.client.host import CoreHost, ProcessHost, ThreadHost
from headrace.engine.config import EngineConfig
from headrace.engine.settings import FrontEndSettings
from headrace.errors import SettingsError


def make_hosts(config: EngineConfig, *, in_process: bool) -> tuple[CoreHost, ...]:
    """One for each core; none is started. Raises SettingsError for a Ray actor that is to be in this process."""
    num_cores = config.parallel.data_parallel_size
    if config.parallel.engine_use_ray:
        if in_process:
            message = "in_process wants the core in this process, engine_use_ray in a Ray actor; drop one of them"
            raise SettingsError(message, param="engine_use_ray")
        return _ray_hosts(config)
    return tuple(_thread_host() if in_process else ProcessHost() for _ in range(num_cores))


def core_connection(hosts: Sequence[CoreHost], settings: FrontEndSettings) -> MakeConnection:
    """What connects the front end to the cores of ours in `hosts`."""
    ways = [_way_to(host, settings) for host in hosts]
    if len(ways) == 1:
        return ways[0]

    def connect(on_step: OnStep, on_death: OnDeath) -> CoreConnection:
        return DataParallelClient(ways, on_step=on_step, on_death=on_death)

    return connect


def _way_to(host: CoreHost, settings: FrontEndSettings) -> MakeConnection:
    def connect(on_step: OnStep, on_death: OnDeath) -> CoreConnection:
        return CoreClient(
            host=host,
            hang_timeout_s=settings.hang_timeout_s,
            step_timeout_s=settings.step_timeout_s,
            on_step=on_step,
            on_death=on_death,
        )

    return connect


def _ray_hosts(config: EngineConfig) -> tuple[CoreHost, ...]:
    from headrace.engine.client.ray_cluster import RayCluster  # an optional package, asked for
    from headrace.engine.client.ray_host import RayHost

    cluster = RayCluster(config.parallel.ray_address)
    return tuple(RayHost(config, cluster=cluster) for _ in range(config.parallel.data_parallel_size))


def _thread_host() -> ThreadHost:
    from headrace.engine.core.engine_core import EngineCore  # imports torch, which the front end else never needs

    return ThreadHost(build_core=EngineCore)
