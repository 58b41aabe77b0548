"""Workers as child processes on this machine, each started by `python -m`: no fork, no `__main__` guard."""

import socket
import subprocess
import sys

import msgspec

from headrace.engine.client.host import describe_exit
from headrace.engine.config import EngineConfig
from headrace.engine.executor.worker_group import GroupMember
from headrace.engine.executor.worker_wire import FromWorker, Launch, WorkerLink
from headrace.errors import EngineError

_HOST = "127.0.0.1"
_KILL_TIMEOUT_S = 5.0


class ProcessStarter:
    """See `WorkerStarter`."""

    def __init__(self) -> None:
        self._started: list[GroupMember] = []

    def __repr__(self) -> str:
        return f"ProcessStarter({len(self._started)} processes)"

    def start(self, config: EngineConfig) -> list[tuple[GroupMember, Launch]]:
        """The first worker inherits the socket that the group meets at, so no port is free for others to take."""
        size = config.parallel.tensor_parallel_size
        with socket.create_server((_HOST, 0), backlog=size) as listener:
            for rank in range(size):
                self._started.append(_start_worker(listener if rank == 0 else None))
            launches = _launches(config, port=listener.getsockname()[1])
            return list(zip(self._started, launches, strict=True))

    def close(self) -> None:
        """Ends workers that never became a group."""
        for member in self._started:
            member.link.close()
            member.handle.end(timeout_s=0.0)


class ChildProcess:
    """See `WorkerHandle`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def __repr__(self) -> str:
        return f"<ChildProcess {self._process.pid}>"

    def end(self, *, timeout_s: float) -> str:
        if not self._has_ended(timeout_s=timeout_s):
            self._process.kill()
            self._has_ended(timeout_s=_KILL_TIMEOUT_S)
        return describe_exit(self._process)

    def _has_ended(self, *, timeout_s: float) -> bool:
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True


def _start_worker(listener: socket.socket | None) -> GroupMember:
    ours, theirs = socket.socketpair()
    with theirs:
        fds = [theirs.fileno()] if listener is None else [theirs.fileno(), listener.fileno()]
        command = [sys.executable, "-P", "-m", "headrace.engine.executor.worker_process", *map(str, fds)]
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=fds)
        except OSError as error:
            ours.close()
            raise EngineError(f"cannot start a worker's process: {error}") from error
    link: WorkerLink[FromWorker] = WorkerLink(ours, received=FromWorker)
    return GroupMember(link, ChildProcess(process))


def _launches(config: EngineConfig, *, port: int) -> list[Launch]:
    size = config.parallel.tensor_parallel_size
    packed = msgspec.json.encode(config)
    return [
        Launch(
            config=packed,
            rank=rank,
            size=size,
            host=_HOST,
            meeting_host=_HOST,
            meeting_port=port,
            device_index=config.parallel.data_parallel_rank * size + rank,
        )
        for rank in range(size)
    ]
