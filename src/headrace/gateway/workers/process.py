"""One worker: `python -m headrace.gateway.workers.process FD`, FD being its end of the socket to its supervisor.

A whole gateway with its own event loop, prefix index and tokenizers. It ends by SIGTERM, like any gateway, or when its
supervisor is gone.
"""

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncIterator

import msgspec
import uvloop

from headrace import log
from headrace.aio.stop import StopRequest, stopped_by_signals
from headrace.errors import SettingsError
from headrace.gateway.app import Gateway
from headrace.gateway.run import drain_unless
from headrace.gateway.workers.place import WorkerPlace
from headrace.gateway.workers.spec import Refused, Started, WorkerSpec


def main(fd: int) -> int:
    """Serve as the first line on the socket says; the exit status."""
    with socket.socket(fileno=fd) as link:
        spec = msgspec.json.decode(_read_line(link), type=WorkerSpec)
        log.configure(level=spec.log_level, log_format=spec.log_format)
        try:
            uvloop.run(_serve(spec, link))
        except SettingsError as error:
            _report(link, Refused(message=error.message, param=error.param))
            return 2
    return 0


async def _serve(spec: WorkerSpec, link: socket.socket) -> None:
    stop = StopRequest()
    gateway = Gateway(
        spec.settings,
        admission=spec.admission,
        tokenization=spec.tokenization,
        settings_file=spec.settings_file,
        wanted=spec.wanted,
        place=WorkerPlace(number=spec.number, socket=spec.socket),
    )
    with stopped_by_signals(stop):
        async with _stopped_by_end_of(link, stop), gateway:
            _report(link, Started(url=gateway.url))
            await stop.requested.wait()
            await drain_unless(stop.repeated, gateway)


@contextlib.asynccontextmanager
async def _stopped_by_end_of(link: socket.socket, stop: StopRequest) -> AsyncIterator[None]:
    """The supervisor says nothing more: what comes is the end."""
    loop = asyncio.get_running_loop()

    def note_end() -> None:
        loop.remove_reader(link)
        stop.request()

    loop.add_reader(link, note_end)
    try:
        yield
    finally:
        loop.remove_reader(link)


def _read_line(link: socket.socket) -> bytes:
    with link.makefile("rb") as file:
        return file.readline()


def _report(link: socket.socket, report: Started | Refused) -> None:
    """A supervisor that is gone needs no report."""
    with contextlib.suppress(OSError):
        link.sendall(msgspec.json.encode(report) + b"\n")


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
