"""What `headrace serve --backend ray` runs: the application, until SIGTERM or SIGINT."""

import asyncio
import importlib
import logging
from typing import Any

from headrace.aio.bridge import make_async
from headrace.aio.stop import StopRequest, catch_signals, stopped_by_signals
from headrace.aio.tasks import TaskOwner
from headrace.engine.client.ray_cluster import RayCluster, own_host
from headrace.engine.config import AsyncEngineArgs
from headrace.errors import EngineError, SettingsError
from headrace.ray_serve.app import build_application
from headrace.ray_serve.engine_replica import EngineLaunch
from headrace.ray_serve.gateway_replica import GatewayLaunch, GatewayUrls
from headrace.ray_serve.settings import RayServeSettings
from headrace.ready_file import write_ready_file

_LOG = logging.getLogger(__name__)
_NAME = "headrace"
_READY_TIMEOUT_S = 60.0


async def run_on_ray(settings: RayServeSettings, *, engine: EngineLaunch, gateway: GatewayLaunch) -> None:
    """Deploy, wait for SIGTERM or SIGINT, and take it down again; requests under way may end. The gateway listens on
    this machine, without Ray Serve's proxies before it.

    Raises SettingsError for what cannot be, and EngineError when the engines do not start."""
    check_server(engine)
    cluster = RayCluster(engine.engine.ray_address)
    stop = StopRequest()
    with stopped_by_signals(stop):
        await make_async(cluster.enter)()
        try:
            catch_signals(stop)
            await make_async(_check_installed)()
            await _serve(settings, engine, gateway, cluster=cluster, stop=stop)
        finally:
            await make_async(cluster.leave)()
    _LOG.info("stopped")


def check_server(launch: EngineLaunch) -> None:
    """Raises SettingsError for settings of the server that mean nothing to engines behind a gateway."""
    server = launch.server
    for name in ("uds", "ssl_certfile", "ssl_keyfile", "ssl_ca_certs"):
        if getattr(server, name) is not None:
            raise SettingsError(f"{name} cannot be used with --backend ray: its gateway listens on TCP", param=name)
    for name in ("api_key", "admin_api_key"):
        if getattr(server, name):
            message = f"{name} cannot be used with --backend ray: its gateway checks keys, see keys_file of the gateway"
            raise SettingsError(message, param=name)


def gpus_of(settings: RayServeSettings, engine: AsyncEngineArgs, *, num_in_cluster: float) -> float:
    """GPUs that each engine takes."""
    if settings.num_gpus is not None:
        return settings.num_gpus
    wants = engine.device == "cuda" or (engine.device == "auto" and num_in_cluster > 0)
    return float(engine.tensor_parallel_size) if wants else 0.0


def _check_installed() -> None:
    """Ray Serve takes seconds to import, here in a thread."""
    try:
        importlib.import_module("ray.serve")
    except ImportError as error:
        message = f"Ray Serve is asked for but not installed ({error}); pip install 'headrace[ray]'"
        raise SettingsError(message, param="backend") from error


async def _serve(
    settings: RayServeSettings, engine: EngineLaunch, gateway: GatewayLaunch, *, cluster: RayCluster, stop: StopRequest
) -> None:
    application = build_application(
        settings,
        engine=engine,
        gateway=gateway,
        num_gpus=gpus_of(settings, engine.engine, num_in_cluster=cluster.total("GPU")),
        gateway_node=await make_async(own_host)(),
    )
    try:
        async with TaskOwner("Ray Serve") as owner:
            deployed = owner.spawn(_deployed(application), name="deploy")
            stopped = owner.spawn(stop.requested.wait(), name="stop")
            await asyncio.wait({deployed, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if deployed.done():
                await _announce(deployed.result(), gateway)
                await stopped
        _LOG.info("stopping; requests under way get %.0f s to end", gateway.gateway.drain_timeout_s)
    finally:
        await make_async(_take_down)()


async def _deployed(application: Any) -> GatewayUrls:
    return await make_async(_deploy)(application)


def _deploy(application: Any) -> GatewayUrls:
    """Blocks until every deployment is up, and says where the gateway is."""
    from ray import serve

    serve.start(proxy_location="Disabled")
    try:
        handle = serve.run(application, name=_NAME, route_prefix=None, logging_config={"enable_access_log": False})
        urls: GatewayUrls = handle.ready_urls.remote().result(timeout_s=_READY_TIMEOUT_S)
    except (RuntimeError, TimeoutError) as error:
        raise EngineError(f"Ray Serve could not start the application: {error}") from error
    return urls


def _take_down() -> None:
    """Blocks until requests under way have ended and every replica is gone."""
    from ray import serve

    serve.delete(_NAME)


async def _announce(urls: GatewayUrls, gateway: GatewayLaunch) -> None:
    if (path := gateway.gateway.ready_file) is not None:
        await make_async(write_ready_file)(path, url=urls.url, admin_url=urls.admin_url)
    admin = f", dashboard on {urls.admin_url}" if urls.admin_url else ""
    _LOG.info("gateway listens on %s%s", urls.url, admin)
