"""What `headrace gateway` runs: a gateway until SIGTERM or SIGINT, then a graceful end."""

import asyncio
import logging
import os
import signal
from pathlib import Path

import msgspec

from headrace.aio.bridge import make_async
from headrace.gateway.app import Gateway
from headrace.gateway.settings import GatewaySettings

_LOG = logging.getLogger(__name__)
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


async def run_gateway(settings: GatewaySettings) -> None:
    """Serve until SIGTERM or SIGINT, then finish what is under way, for `drain_timeout_s` at most; a second signal cuts
    it at once. Must run in the main thread's loop, which gets the signal handlers. Raises SettingsError."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    cut = asyncio.Event()

    def on_signal() -> None:
        (cut if stop.is_set() else stop).set()

    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal)
    try:
        async with Gateway(settings) as gateway:
            await _announce(gateway, settings)
            await stop.wait()
            _LOG.info("stopping; requests under way get %.0f s to end", settings.drain_timeout_s)
            await _drain_unless(cut, gateway)
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
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
    _LOG.info("gateway listens on %s%s", gateway.url, admin)
    if settings.ready_file is not None:
        ready = {"url": gateway.url, "admin_url": gateway.admin_url, "pid": os.getpid()}
        await make_async(_write_atomically)(Path(settings.ready_file), msgspec.json.encode(ready))


def _write_atomically(path: Path, data: bytes) -> None:
    """Readers see either nothing or all of it."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    partial.write_bytes(data)
    partial.replace(path)
