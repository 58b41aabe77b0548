"""What `headrace gateway` runs: a gateway until SIGTERM or SIGINT, then a graceful end."""

import asyncio
import logging

from headrace.aio.bridge import make_async
from headrace.aio.stop import StopRequest, stopped_by_signals
from headrace.aio.tasks import TaskOwner
from headrace.gateway.admission.settings import AdmissionSettings
from headrace.gateway.app import Gateway
from headrace.gateway.garbage import settle
from headrace.gateway.open_files import allow_connections
from headrace.gateway.settings import GatewaySettings
from headrace.gateway.workers.supervisor import Supervisor
from headrace.log import LogFormat
from headrace.ready_file import write_ready_file
from headrace.tokenization import TokenizationSettings

_LOG = logging.getLogger(__name__)


async def run_gateway(
    settings: GatewaySettings,
    *,
    admission: AdmissionSettings | None = None,
    tokenization: TokenizationSettings | None = None,
    settings_file: str | None = None,
    log_level: str = "info",
    log_format: LogFormat = "text",
) -> None:
    """Serve until SIGTERM or SIGINT, then finish what is under way, for `drain_timeout_s` at most; a second signal cuts
    it at once. Must run in the main thread's loop, which gets the signal handlers.

    `settings_file` is where `settings.endpoint` stands, to be followed there. Workers log as `log_level` and
    `log_format` say. Raises SettingsError, and HeadraceError when workers cannot be kept up.
    """
    stop = StopRequest()
    allow_connections(num_clients=settings.max_connections, num_upstream=settings.max_concurrent_requests)
    with stopped_by_signals(stop):
        if settings.workers > 1:
            supervisor = Supervisor(
                settings,
                admission=admission,
                tokenization=tokenization,
                settings_file=settings_file,
                log_level=log_level,
                log_format=log_format,
            )
            await _supervise(supervisor, settings, stop)
        else:
            gateway = Gateway(settings, admission=admission, tokenization=tokenization, settings_file=settings_file)
            await _serve(gateway, settings, stop)
    _LOG.info("stopped")


async def _serve(gateway: Gateway, settings: GatewaySettings, stop: StopRequest) -> None:
    async with gateway:
        settle()
        await _announce(gateway.url, gateway.admin_url, settings)
        await stop.requested.wait()
        _LOG.info("stopping; requests under way get %.0f s to end", settings.drain_timeout_s)
        await drain_unless(stop.repeated, gateway)


async def _supervise(supervisor: Supervisor, settings: GatewaySettings, stop: StopRequest) -> None:
    async with supervisor, TaskOwner("supervisor") as owner:
        await _announce(supervisor.url, supervisor.admin_url, settings)
        stopping = owner.spawn(stop.requested.wait(), name="stop")
        failing = owner.spawn(supervisor.failed.wait(), name="failure")
        await asyncio.wait([stopping, failing], return_when=asyncio.FIRST_COMPLETED)
        _LOG.info("stopping; requests under way get %.0f s to end", settings.drain_timeout_s)
        owner.spawn(_cut_after(stop.repeated, supervisor), name="cut")
        await supervisor.drain()
        if supervisor.error is not None:
            raise supervisor.error


async def _cut_after(repeated: asyncio.Event, supervisor: Supervisor) -> None:
    await repeated.wait()
    supervisor.cut()


async def drain_unless(cut: asyncio.Event, gateway: Gateway) -> None:
    """Drain the gateway, or stop doing so when `cut` is set."""
    async with asyncio.TaskGroup() as group:
        draining = group.create_task(gateway.drain())
        cutting = group.create_task(cut.wait())
        await asyncio.wait([draining, cutting], return_when=asyncio.FIRST_COMPLETED)
        draining.cancel()
        cutting.cancel()


async def _announce(url: str, admin_url: str | None, settings: GatewaySettings) -> None:
    admin = f", dashboard on {admin_url}" if admin_url else ""
    if settings.ready_file is not None:
        await make_async(write_ready_file)(settings.ready_file, url=url, admin_url=admin_url)
    workers = f", {settings.workers} workers" if settings.workers > 1 else ""
    _LOG.info("gateway listens on %s%s%s", url, admin, workers)
