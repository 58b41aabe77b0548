"""Endpoints by name: `dns://NAME:PORT` stands for every address, IPv4 and IPv6, that NAME has, asked again and again.

The system's resolver answers, in a thread of its own, and says nothing of how long its answer is good; a look-up that
hangs holds up nobody, and the next begins when it has ended.
"""

import asyncio
import contextlib
import ipaddress
import logging
import random
import socket
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from typing import TypeAlias
from urllib.parse import urlsplit

from headrace.errors import SettingsError
from headrace.gateway.discovery.entry import EndpointEntry, spec_of
from headrace.gateway.discovery.source import EndpointSpec, SourceStatistics
from headrace.gateway.upstream.address import parse_address

_LOG = logging.getLogger(__name__)
_MAX_ADDRESSES = 1024
_MAX_PAUSE_S = 60.0
_TIMEOUT_S = 10.0

Resolve: TypeAlias = Callable[[str, int], Sequence[str]]
"""The addresses of a name, for a port. May block; raises OSError."""


class DnsSource:
    """An answer without addresses, or none, keeps the last one: engines that are gone are found out by probes."""

    def __init__(
        self, entry: EndpointEntry, *, interval_s: float, where: str, resolve: "Resolve | None" = None
    ) -> None:
        """What else the entry says holds for all its addresses. Raises SettingsError."""
        if entry.kv_events is not None:
            message = f"{where} {entry.url!r}: kv_events names one engine's socket, but a name may have many addresses"
            raise SettingsError(message, param="endpoint")
        self.name = entry.url
        self._entry = entry
        self._host, self._port = parse_name(entry.url)
        self._interval_s = interval_s
        self._resolve = resolve or _resolve
        self._specs: tuple[EndpointSpec, ...] | None = None
        self._trouble: str | None = None
        self._num_troubles = 0
        self._num_failures = 0
        """In a row."""
        self._lookup: Future[Sequence[str]] | None = None

    async def watch(self) -> AsyncIterator[tuple[EndpointSpec, ...]]:
        """See `Source`."""
        while True:
            if await self._look() and self._specs is not None:
                yield self._specs
            await asyncio.sleep(self._pause_s())

    def statistics(self) -> SourceStatistics:
        return SourceStatistics(
            num_endpoints=len(self._specs or ()), trouble=self._trouble, num_troubles=self._num_troubles
        )

    async def _look(self) -> bool:
        """Resolve once; whether the endpoints have changed."""
        if self._lookup is None or self._lookup.done():
            self._lookup = self._start_lookup()
        lookup = self._lookup
        answered = asyncio.Event()
        loop = asyncio.get_running_loop()
        lookup.add_done_callback(lambda _: _wake(loop, answered))
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await answered.wait()
            addresses = lookup.result()
        except TimeoutError:
            return self._note_trouble(f"no answer within {_TIMEOUT_S:g} s")
        except OSError as error:
            return self._note_trouble(f"cannot be resolved: {error.strerror or error}")
        if not addresses:
            return self._note_trouble("has no address")
        self._trouble, self._num_failures = None, 0
        specs = tuple(self._spec_of(address) for address in sorted(set(addresses))[:_MAX_ADDRESSES])
        has_changed = specs != self._specs
        self._specs = specs
        return has_changed

    def _start_lookup(self) -> "Future[Sequence[str]]":
        """In a daemon thread, so that a resolver that hangs does not keep the process from ending."""
        lookup: Future[Sequence[str]] = Future()

        def run() -> None:
            try:
                lookup.set_result(self._resolve(self._host, self._port))
            except OSError as error:
                lookup.set_exception(error)

        threading.Thread(target=run, name="headrace-dns", daemon=True).start()
        return lookup

    def _spec_of(self, address: str) -> EndpointSpec:
        host = f"[{address}]" if ":" in address else address
        found = parse_address(f"http://{host}:{self._port}")
        return spec_of(self._entry, found, origin=self.name, where=self.name)

    def _note_trouble(self, why: str) -> bool:
        self._num_failures += 1
        self._num_troubles += 1
        if why != self._trouble:
            _LOG.warning("%s: %s; the endpoints known stay", self.name, why)
        self._trouble = why
        return False

    def _pause_s(self) -> float:
        """Longer with every failure in a row; of random length, so that gateways do not ask all at once."""
        grown_s = self._interval_s * 2.0 ** min(self._num_failures, 16)
        longest_s = min(grown_s, max(_MAX_PAUSE_S, self._interval_s))
        return longest_s * random.uniform(0.75, 1.0)  # noqa: S311 - no secret

    def __repr__(self) -> str:
        return f"DnsSource({self.name}, num_endpoints={len(self._specs or ())}, {self._trouble or 'well'})"


def _wake(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    """From a thread; the loop may be gone by now."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(event.set)


def parse_name(url: str) -> tuple[str, int]:
    """Name and port of `dns://NAME:PORT`. Raises SettingsError."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        (host or "").encode("idna")  # what resolving it begins with
    except ValueError:
        host, port = None, None
    extra = "" if host is None else f"{parts.path.strip('/')}{parts.query}{parts.fragment}{parts.username or ''}"
    if not host or not port or extra or not url.isascii():
        raise SettingsError(f"endpoint {url!r} is not dns://NAME:PORT", param="endpoint")
    return host, port


def _resolve(host: str, port: int) -> Sequence[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [str(address[0]) for family, _, _, _, address in found if family in {socket.AF_INET, socket.AF_INET6}]
    return [address for address in addresses if not _needs_scope(address)]


def _needs_scope(address: str) -> bool:
    """Link-local IPv6 addresses mean something on one interface only, which a URL cannot name."""
    return "%" in address or (ipaddress.ip_address(address).is_link_local and ":" in address)
