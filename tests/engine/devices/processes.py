"""Waiting for processes that are not ours to wait for."""

import os
import select
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager


@contextmanager
def all_end(pids: Iterable[object], *, timeout_s: float = 10.0) -> Iterator[None]:
    """The processes, anybody's children, have ended soon after the block."""
    with ExitStack() as closing:
        fds = {pid: os.pidfd_open(pid) for pid in pids if isinstance(pid, int)}
        for fd in fds.values():
            closing.callback(os.close, fd)
        yield
        for pid, fd in fds.items():
            readable, _, _ = select.select([fd], [], [], timeout_s)
            assert readable, f"process {pid} still runs"
