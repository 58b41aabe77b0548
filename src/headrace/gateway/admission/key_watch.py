"""Reads the file of keys again when it has changed. What cannot be read changes nothing."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from headrace.aio.bridge import make_async
from headrace.aio.tasks import TaskOwner
from headrace.errors import SettingsError
from headrace.gateway.admission.key_file import read_keys
from headrace.gateway.admission.keys import KeyRing

_LOG = logging.getLogger(__name__)

_Signature = tuple[int, int, int] | None


class KeyWatch:
    """Holds the present KeyRing. `on_change` is called in the loop after each change."""

    def __init__(self, path: Path, *, interval_s: float, on_change: Callable[[KeyRing], None]) -> None:
        self.ring = KeyRing(())
        self.why_stale: str | None = None
        """Why the file as it is now is not in force."""
        self._path = path
        self._interval_s = interval_s
        self._on_change = on_change
        self._signature: _Signature = None
        self._owner = TaskOwner("keys file")

    async def start(self) -> None:
        """Read the file and begin to watch it. Raises SettingsError when it cannot be read."""
        self._signature = await make_async(_signature_of)(self._path)
        self.ring = KeyRing(await make_async(read_keys)(self._path))
        self._owner.spawn(self._watch(), name="watching the keys file")

    async def aclose(self) -> None:
        """Watch no more. Idempotent."""
        await self._owner.aclose()

    async def look(self) -> None:
        """Read the file if it has changed since the last look."""
        signature = await make_async(_signature_of)(self._path)
        if signature == self._signature:
            return
        self._signature = signature
        try:
            ring = KeyRing(await make_async(read_keys)(self._path))
        except SettingsError as error:
            self.why_stale = error.message
            _LOG.error("the keys stay as they were: %s", error.message)
            return
        self.why_stale = None
        self.ring = ring
        _LOG.info("read %d keys of %s", len(ring), self._path)
        self._on_change(ring)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            await self.look()

    def __repr__(self) -> str:
        return f"KeyWatch({self._path}, {self.ring!r})"


def _signature_of(path: Path) -> _Signature:
    """What differs when the file has been changed or replaced; None when there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
