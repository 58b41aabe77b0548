"""The socket that the server listens on, and its URL."""

import contextlib
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from headrace.errors import SettingsError
from headrace.server.settings import ServerSettings


def open_listener(settings: ServerSettings) -> contextlib.AbstractContextManager[socket.socket]:
    """The listener that `settings` ask for; see the two below."""
    if settings.uds is not None:
        return bound_unix_listener(settings.uds)
    return bound_listener(settings.host, settings.port)


@contextlib.contextmanager
def bound_listener(host: str, port: int) -> Iterator[socket.socket]:
    """A bound TCP socket that does not listen yet, so that clients are refused until the server is ready.

    Raises SettingsError when the address cannot be had: before a model is loaded, not after.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise SettingsError(f"cannot listen on host {host!r}: {error}", param="host") from error
    with contextlib.closing(listener):
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except OSError as error:
            raise SettingsError(f"cannot listen on {host} port {port}: {error}", param="port") from error
        yield listener


@contextlib.contextmanager
def bound_unix_listener(path: str) -> Iterator[socket.socket]:
    """The same at a path of the file system, which is removed afterwards unless somebody else has taken it.

    A socket that nobody answers on is replaced; one that a server answers on, or a file of another kind, is a
    SettingsError.
    """
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as listener:
        _remove_stale(Path(path))
        try:
            listener.bind(path)
        except OSError as error:
            raise SettingsError(f"cannot listen on the Unix socket {path!r}: {error}", param="uds") from error
        identity = _identity(Path(path))
        try:
            yield listener
        finally:
            if _identity(Path(path)) == identity:
                Path(path).unlink(missing_ok=True)


def url_of(listener: socket.socket, *, is_tls: bool = False) -> str:
    """What clients are told; a Unix socket is `unix:PATH`."""
    if listener.family == socket.AF_UNIX:
        return f"unix:{Path(os.fsdecode(listener.getsockname())).absolute()}"
    scheme = "https" if is_tls else "http"
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if listener.family == socket.AF_INET6 else f"{scheme}://{host}:{port}"


def _remove_stale(path: Path) -> None:
    try:
        is_socket = stat.S_ISSOCK(path.lstat().st_mode)
    except OSError:
        return  # nothing is there, or `bind` says what is wrong with it
    if not is_socket:
        raise SettingsError(f"uds {str(path)!r} exists and is no socket; name another path", param="uds")
    if _is_answered(path):
        raise SettingsError(f"a server listens on the Unix socket {str(path)!r} already", param="uds")
    path.unlink(missing_ok=True)


def _is_answered(path: Path) -> bool:
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as client:
        client.setblocking(False)  # a server whose queue is full is one all the same
        try:
            client.connect(str(path))
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
