"""The engine core's process: `python -m headrace.engine.core.process FD`, FD being its end of the channel.

It ends when told to, when its core fails, and by itself when the process that started it is gone, however that died.
Interrupts and SIGTERM are left to the front end, which drains first and then ends this process.
"""

import faulthandler
import os
import signal
import socket
import sys
import threading

from headrace.engine.config import EngineConfig
from headrace.engine.core.loop import BuildCore, Core, serve_core
from headrace.engine.wire.channel import BlockingChannel

_PARENT_CHECK_S = 1.0
_ORPHAN_GRACE_S = 2.0
"""An orphan's core may end the step it is in; after this long the process ends without it."""


def run_core_process(fd: int, *, build_core: BuildCore) -> int:
    """Serve the front end at the other end of the socket `fd`; returns the process's exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    faulthandler.enable()
    channel = BlockingChannel(socket.socket(fileno=fd))
    has_ended = threading.Event()
    guard = threading.Thread(target=_end_when_orphaned, args=(channel, has_ended), name="orphan-guard", daemon=True)
    guard.start()
    try:
        return 0 if serve_core(channel, build_core=build_core) else 1
    finally:
        has_ended.set()


def _end_when_orphaned(channel: BlockingChannel, has_ended: threading.Event) -> None:
    """Ends the process when the front end is gone and the main thread, perhaps deep in native code, does not notice.

    The socket alone would do, if no other process could have inherited the front end's end of it by a fork.
    """
    parent = os.getppid()
    while not channel.peer_is_gone.wait(timeout=_PARENT_CHECK_S):
        if os.getppid() != parent:
            channel.hang_up()
    if not has_ended.wait(timeout=_ORPHAN_GRACE_S):
        os._exit(1)


def _build_engine_core(config: EngineConfig) -> Core:
    from headrace.engine.core.engine_core import (
        EngineCore,  # torch, late: an import that fails is reported as any other failure
    )

    return EngineCore(config)


if __name__ == "__main__":
    sys.exit(run_core_process(int(sys.argv[1]), build_core=_build_engine_core))
