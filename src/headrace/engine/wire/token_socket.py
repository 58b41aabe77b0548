"""TCP connections between processes of one engine on different machines, let in by a random token.

Whoever starts the others listens on its machine's address and hands out the token by another way; who connects says it
first. What follows is not encrypted: the machines of a cluster are taken to share a network of their own.
"""

import contextlib
import hmac
import secrets
import socket
import struct
import time
from dataclasses import dataclass

from headrace.errors import EngineError

_TOKEN_BYTES = 32
_HELLO = struct.Struct(f"<{_TOKEN_BYTES}sI")
_HELLO_TIMEOUT_S = 2.0
"""Who connects and says nothing holds up the others for no longer."""
_MAX_WAITING = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorAddress:
    """Where to connect, and what to say."""

    host: str
    port: int
    token: bytes

    def __repr__(self) -> str:
        return f"DoorAddress({self.host}:{self.port})"


class Door:
    """Listens, and lets in those who know the token. One thread uses it."""

    def __init__(self, host: str) -> None:
        """Raises EngineError when `host` is no address of this machine."""
        try:
            self._socket = socket.create_server((host, 0), backlog=_MAX_WAITING)
        except OSError as error:
            raise EngineError(f"cannot listen at {host}: {error}") from error
        port: int = self._socket.getsockname()[1]
        self.address = DoorAddress(host=host, port=port, token=secrets.token_bytes(_TOKEN_BYTES))

    def __repr__(self) -> str:
        return f"Door({self.address!r})"

    def admit(self, *, timeout_s: float) -> tuple[socket.socket, int] | None:
        """The next one's connection and number; None if nobody came in time. Those without the token are hung up on."""
        deadline_s = time.monotonic() + timeout_s
        while (left_s := deadline_s - time.monotonic()) > 0:
            self._socket.settimeout(left_s)
            with contextlib.suppress(OSError), contextlib.ExitStack() as undo:  # nobody came, or said nothing
                guest, _ = self._socket.accept()
                undo.callback(guest.close)
                if (number := self._number_of(guest)) is not None:
                    undo.pop_all()
                    return _prepared(guest), number
        return None

    def close(self) -> None:
        """Idempotent."""
        self._socket.close()

    def _number_of(self, guest: socket.socket) -> int | None:
        guest.settimeout(_HELLO_TIMEOUT_S)
        hello = b""
        while len(hello) < _HELLO.size and (chunk := guest.recv(_HELLO.size - len(hello))):
            hello += chunk
        if len(hello) < _HELLO.size:
            return None
        token, number = _HELLO.unpack(hello)
        return number if hmac.compare_digest(token, self.address.token) else None


def knock(address: DoorAddress, *, number: int, timeout_s: float) -> socket.socket:
    """Connect, as the one with this number. Raises EngineError when nobody is there."""
    try:
        sock = socket.create_connection((address.host, address.port), timeout=timeout_s)
        sock.sendall(_HELLO.pack(address.token, number))
    except OSError as error:
        raise EngineError(f"cannot connect to {address.host}:{address.port}: {error}") from error
    return _prepared(sock)


def _prepared(sock: socket.socket) -> socket.socket:
    """Small messages leave at once, and a machine that vanished is noticed in minutes."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.settimeout(None)
    return sock
