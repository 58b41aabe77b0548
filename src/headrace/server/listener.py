"""The socket that the server listens on, and its URL."""

import contextlib
import socket
from collections.abc import Iterator

from headrace.errors import SettingsError


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


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if listener.family == socket.AF_INET6 else f"http://{host}:{port}"
