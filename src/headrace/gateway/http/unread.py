"""Tells a client that reads slowly from one that does not read: whether bytes have left since the last look."""

import array
import asyncio
import contextlib
import fcntl
import termios

_LEAST_TAKEN_BYTES = 1024
"""Within one deadline; a client that takes less only pretends to read."""


class UnreadWatch:
    """Looks at what is still to leave over one transport."""

    __slots__ = ("_num_waiting_bytes", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._num_waiting_bytes = 0

    def look(self) -> bool:
        """Whether a KiB less waits than at the last look. Worth asking only while nothing is added."""
        before, self._num_waiting_bytes = self._num_waiting_bytes, self._num_waiting()
        return before - self._num_waiting_bytes >= _LEAST_TAKEN_BYTES

    def _num_waiting(self) -> int:
        """Bytes that the client's machine has not taken: those in the transport, and those in the kernel, which would
        else let go of nothing visible until a third of its buffer is free."""
        num_bytes = self._transport.get_write_buffer_size()
        in_kernel = array.array("i", [0])
        sock = self._transport.get_extra_info("socket")
        with contextlib.suppress(OSError):  # closed, or a system that does not tell
            fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, in_kernel)
        return num_bytes + in_kernel[0]

    def __repr__(self) -> str:
        return f"UnreadWatch({self._num_waiting_bytes} bytes)"
