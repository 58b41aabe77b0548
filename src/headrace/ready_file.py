"""The file in which a server says that it is ready and where, for whoever started it."""

import os
from pathlib import Path

import msgspec

from headrace.errors import SettingsError


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """Where a server listens."""

    url: str
    admin_url: str | None = None
    pid: int


def write_ready_file(path: str, *, url: str, admin_url: str | None = None) -> None:
    """Whoever waits for `path` sees all of it or nothing. Raises SettingsError when it cannot be written."""
    content = msgspec.json.encode(Address(url=url, admin_url=admin_url, pid=os.getpid()))
    partial = Path(f"{path}.{os.getpid()}.partial")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    except OSError as error:
        raise SettingsError(f"cannot write the ready file {path}: {error}", param="ready_file") from error


def read_ready_file(path: Path) -> Address | None:
    """What the server wrote; None while it is not ready."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Address)
    except FileNotFoundError:
        return None
