"""A real redis-server of a test's own, on a Unix socket, with nothing written to disk."""

import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

PROGRAM = shutil.which("redis-server")


class RedisServer:
    """`with RedisServer() as server:` runs it; it can be stopped, paused and started again."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="hr-redis-"))
        self.url = f"unix://{self._directory}/s"
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        assert PROGRAM is not None
        options = ["--port", "0", "--unixsocket", f"{self._directory}/s", "--save", "", "--appendonly", "no"]
        self._process = subprocess.Popen(
            [PROGRAM, *options, "--dir", str(self._directory)], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        while "eady to accept connections" not in self._process.stdout.readline():
            assert self._process.poll() is None, "redis-server ended"

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        shutil.rmtree(self._directory, ignore_errors=True)
