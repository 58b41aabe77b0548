"""An engine in a process of its own, driven over pipes: started, paused while another measures, and ended.

Which engine it is, its runner knows; see `engine_child` for the other end.
"""

import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import msgspec

from headrace.cli.benchmarks import engine_child, process_tree
from headrace.cli.benchmarks.engine_child import Ids, Json
from headrace.errors import HeadraceError

_START_TIMEOUT_S = 600.0
"""vLLM compiles for more than a minute."""
_CALL_TIMEOUT_S = 900.0
_CONVERT_TIMEOUT_S = 900.0
_END_TIMEOUT_S = 20.0
_NUM_LOG_LINES = 6
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"), "1")
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


class EngineProcessError(HeadraceError):
    """An engine did not start, failed, or did not answer in time; the message has the end of its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """How to start one engine, and on what it is measured."""

    name: str
    version: str
    python: Path
    runner: Path
    options: Json
    environment: Mapping[str, str] = field(default_factory=dict)
    converted_suffix: str | None = None
    is_required: bool = False
    """Its failure ends the run; another engine is left out then."""
    slots: tuple[str, ...] | None = None
    """Only these parts of the benchmark; None for all."""


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """One call's answer."""

    ids: Ids
    first_token_s: float
    """From the call to the first token of any prompt."""
    elapsed_s: float
    has_prefix_cache: bool = True
    """In the first answer only."""


class EngineProcess:
    """A started engine, paused but during its calls. A context manager; leaving it ends the whole process tree."""

    def __init__(self, spec: EngineSpec, *, process: subprocess.Popen[bytes], log: Path) -> None:
        self.spec = spec
        self.start_s = 0.0
        """From the start of the process to its first token."""
        self.has_prefix_cache = True
        self._process = process
        self._log = log
        self._unread = b""

    def __repr__(self) -> str:
        return f"<EngineProcess {self.spec.name} pid={self._process.pid}>"

    @classmethod
    def start(cls, spec: EngineSpec, *, model: Path, logs: Path) -> Self:
        """Returns when the engine has made its first token (seconds to minutes, blocking), paused.

        Raises EngineProcessError.
        """
        log = logs / f"{spec.name}.log"
        begun_at = time.perf_counter()
        with log.open("wb") as log_file:
            process = subprocess.Popen(
                _command(spec, "serve", model=model, last=json.dumps(spec.options)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log_file,
                env=_environment(spec),
                process_group=0,  # Ctrl-C goes to us alone, and we end it
            )
        engine = cls(spec, process=process, log=log)
        try:
            first = engine._read(timeout_s=_START_TIMEOUT_S)
            engine.start_s = time.perf_counter() - begun_at
            engine.has_prefix_cache = first.has_prefix_cache
            process_tree.send(process.pid, signal.SIGSTOP)
        except BaseException:
            engine.close()
            raise
        return engine

    def generate(self, prompts: Ids, *, num_tokens: int) -> Generation:
        """Answer all prompts at once, with `num_tokens` tokens each (blocking). Raises EngineProcessError."""
        request = json.dumps({"prompts": prompts, "num_tokens": num_tokens}) + "\n"
        with self._running():
            assert self._process.stdin is not None
            try:
                self._process.stdin.write(request.encode())
                self._process.stdin.flush()
            except BrokenPipeError:
                raise self._error("has ended") from None
            return self._read(timeout_s=_CALL_TIMEOUT_S)

    def peak_bytes(self) -> int | None:
        """See `process_tree.peak_bytes`."""
        return process_tree.peak_bytes(self._process.pid)

    def close(self) -> None:
        """Ask it to end, and kill what has not ended then. Idempotent."""
        if self._process.returncode is not None:
            return
        started = process_tree.births_of(process_tree.tree_of(self._process.pid))
        process_tree.send(self._process.pid, signal.SIGCONT)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):  # a request that a dead engine did not read
                    pipe.close()
        try:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=_END_TIMEOUT_S)
        finally:
            process_tree.kill(started)  # and what it left behind
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @contextmanager
    def _running(self) -> Iterator[None]:
        process_tree.send(self._process.pid, signal.SIGCONT)
        yield
        process_tree.send(self._process.pid, signal.SIGSTOP)

    def _read(self, *, timeout_s: float) -> Generation:
        line = self._read_line(timeout_s=timeout_s)
        try:
            return msgspec.json.decode(line, type=Generation)
        except msgspec.DecodeError as error:
            raise self._error(f"answered {line[:80]!r}: {error}") from None

    def _read_line(self, *, timeout_s: float) -> bytes:
        assert self._process.stdout is not None
        end_at = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                if not selector.select(end_at - time.monotonic()):
                    raise self._error(f"did not answer within {timeout_s:g} s")
                piece = os.read(self._process.stdout.fileno(), 1 << 20)
                if not piece:
                    raise self._error("ended without an answer")
                self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _error(self, what: str) -> EngineProcessError:
        return EngineProcessError(f"{self.spec.name} {what}; the end of its log:\n{_end_of(self._log)}")


def convert(spec: EngineSpec, *, model: Path, out: Path, logs: Path) -> None:
    """Write the model in the engine's own format (a minute, blocking). Raises EngineProcessError."""
    out.parent.mkdir(parents=True, exist_ok=True)
    log = logs / f"{spec.name} conversion.log"
    with log.open("wb") as log_file:
        command = _command(spec, "convert", model=model, last=str(out))
        try:
            subprocess.run(command, check=True, stdout=log_file, stderr=subprocess.STDOUT, timeout=_CONVERT_TIMEOUT_S)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            message = f"{spec.name} cannot convert {model}: {error}; the end of its log:\n{_end_of(log)}"
            raise EngineProcessError(message) from None


def _command(spec: EngineSpec, verb: str, *, model: Path, last: str) -> list[str]:
    child = Path(engine_child.__file__)
    return [str(spec.python), "-P", str(child), verb, str(spec.runner), str(model), last]


def _environment(spec: EngineSpec) -> dict[str, str]:
    return {**os.environ, **_ONE_THREAD, **_OFFLINE, **spec.environment}


def _end_of(log: Path) -> str:
    return "\n".join(log.read_bytes()[-8192:].decode(errors="replace").strip().splitlines()[-_NUM_LOG_LINES:])
