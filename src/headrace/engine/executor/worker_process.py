"""A worker's process: `python -m headrace.engine.executor.worker_process LINK_FD LISTENER_FD`, the second for the
first worker only.

It ends when told to, when its link closes, and with its parent, however that died. Interrupts and SIGTERM are left to
the front end, which ends the core, which ends this.
"""

import ctypes
import faulthandler
import os
import signal
import socket
import sys
import threading

_PARENT_CHECK_S = 1.0
_PR_SET_PDEATHSIG = 1


def run_worker_process(link_fd: int, listener_fd: int | None) -> int:
    """Serve the executor at the other end of the socket `link_fd`; the process's exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    faulthandler.enable()
    end_with_parent(os.getppid())
    link = socket.socket(fileno=link_fd)
    listener = None if listener_fd is None else socket.socket(fileno=listener_fd)

    from headrace.engine.executor.worker_loop import serve_worker  # torch: seconds, in which the parent may end

    return 0 if serve_worker(link, listener=listener) else 1


def end_with_parent(parent: int) -> None:
    """End this process when `parent` ends, even if it computes, waits for other workers or is stopped."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    guard = threading.Thread(target=_exit_when_orphaned, args=(parent,), name="orphan-guard", daemon=True)
    guard.start()


def _exit_when_orphaned(parent: int) -> None:
    never = threading.Event()
    while os.getppid() == parent:
        never.wait(_PARENT_CHECK_S)
    os._exit(1)


if __name__ == "__main__":
    status = run_worker_process(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # nothing is left to tidy up, and taking torch down takes a second
