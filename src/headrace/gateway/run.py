"""What `headrace gateway` runs: a gateway until SIGTERM or SIGINT, then a graceful end."""

import asyncio
import logging

from headrace.aio.bridge import make_async
from headrace.aio.stop import StopRequest, stopped_by_signals
from headrace.gateway.admission.settings import AdmissionSettings
from headrace.gateway.app import Gateway
from headrace.gateway.settings import GatewaySettings
from headrace.ready_file import write_ready_file
from headrace.tokenization import TokenizationSettings

_LOG = logging.getLogger(__name__)


async def run_gateway(
    settings: GatewaySettings,
    *,
    admission: AdmissionSettings | None = None,
    tokenization: TokenizationSettings | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, then finish what is under way, for `drain_timeout_s` at most; a second signal cuts
    it at once. Must run in the main thread's loop, which gets the signal handlers. Raises SettingsError."""
    stop = StopRequest()
    with stopped_by_signals(stop):
        async with Gateway(settings, admission=admission, tokenization=tokenization) as gateway:
            await _announce(gateway, settings)
            await stop.requested.wait()
            _LOG.info("stopping; requests under way get %.0f s to end", settings.drain_timeout_s)
            await _drain_unless(stop.repeated, gateway)
    _LOG.info("stopped")


async def _drain_unless(cut: asyncio.Event, gateway: Gateway) -> None:
    async with asyncio.TaskGroup() as group:
        draining = group.create_task(gateway.drain())
        cutting = group.create_task(cut.wait())
        await asyncio.wait([draining, cutting], return_when=asyncio.FIRST_COMPLETED)
        draining.cancel()
        cutting.cancel()


async def _announce(gateway: Gateway, settings: GatewaySettings) -> None:
    admin = f", dashboard on {gateway.admin_url}" if gateway.admin_url else ""
    if settings.ready_file is not None:
        await make_async(write_ready_file)(settings.ready_file, url=gateway.url, admin_url=gateway.admin_url)
    _LOG.info("gateway listens on %s%s", gateway.url, admin)
