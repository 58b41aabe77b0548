"""The command: a server on one core, its load on another, and the engine without a server in turns with it."""

import argparse
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import uvloop
from rich.console import Console

from headrace.cli.benchmarks import machine, null_core, paced_null_core
from headrace.cli.benchmarks.corpus import mixed_text
from headrace.cli.benchmarks.engine_measures import spread
from headrace.cli.benchmarks.gateway.job import Job, Outcome
from headrace.cli.benchmarks.gateway.process import BenchProcessError, PinnedProcess, free_ports, run_job
from headrace.cli.benchmarks.gateway.workload import MODEL, Shape, Workload, write
from headrace.cli.benchmarks.progress import Steps, progress
from headrace.cli.benchmarks.server import child
from headrace.cli.benchmarks.server.report import TITLES, ServerReport, show
from headrace.engine import AsyncLLMEngine, SamplingParams
from headrace.engine.client.host import ProcessHost
from headrace.errors import SettingsError

_BODY_BYTES = 2048
_NUM_OUTPUT_TOKENS = 16
"""As in the requests of `Workload`."""
_STREAM_BODY_BYTES = 600
_STREAM_TOKENS = 128
_MEASURED_S, _QUICK_S = 4.0, 1.0
_NUM_DIRECT, _NUM_QUICK_DIRECT = 300, 50
_NUM_WARM_UP = 50
_CHATS_PER_ROUND = 1_000_000
"""More than are sent: no prompt comes twice."""
_NUM_ROUNDS = 5
_READY_TIMEOUT_S = 60.0
_FILE_COLUMNS = 140


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    model: Path
    num_rounds: int
    num_streams: int
    is_quick: bool
    server_core: int
    load_core: int

    @property
    def measured_s(self) -> float:
        return _QUICK_S if self.is_quick else _MEASURED_S

    @property
    def num_direct(self) -> int:
        return _NUM_QUICK_DIRECT if self.is_quick else _NUM_DIRECT


def run(argv: Sequence[str]) -> int:
    """Measure and print; the exit status. Raises BenchProcessError and SettingsError."""
    plan, is_json = _plan(_parser().parse_args(argv))
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the server too
    with progress(Console(stderr=True, highlight=False)) as steps, tempfile.TemporaryDirectory() as folder:
        report = _measured(plan, steps, Path(folder))
    if is_json:
        print(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        show(report, Console(highlight=False, width=None if sys.stdout.isatty() else _FILE_COLUMNS))
    return 0


def _plan(arguments: argparse.Namespace) -> tuple[_Plan, bool]:
    for name in ("streams", "rounds"):
        if (value := getattr(arguments, name)) is not None and value < 1:
            raise SettingsError(f"--{name} is {value}; it must be 1 or more", param=name)
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(cores) < 2:
        raise SettingsError("this benchmark needs Linux and two cores: one for the server, one for its load")
    plan = _Plan(
        model=arguments.model.resolve(),
        num_rounds=arguments.rounds or (1 if arguments.quick else _NUM_ROUNDS),
        num_streams=arguments.streams,
        is_quick=arguments.quick,
        server_core=cores[0],
        load_core=cores[1],
    )
    return plan, arguments.json


def _measured(plan: _Plan, steps: Steps, folder: Path) -> ServerReport:
    found, begun_s = machine.describe(), time.monotonic()
    works = _works(plan, folder)
    samples: dict[str, list[float]] = {name: [] for name in TITLES}
    with _server(null_core.__name__, plan, folder) as free, _server(paced_null_core.__name__, plan, folder) as paced:
        steps.begin("requests, streams, one alone, the engine alone", num_steps=plan.num_rounds + 1)
        for number in range(plan.num_rounds + 1):
            done = _round(plan, number, works=works, free=free, paced=paced)
            if number:  # the round before the first warms all up
                for name, value in done.items():
                    samples[name].append(value)
            steps.step()
    return ServerReport(
        model=plan.model.name,
        is_quick=plan.is_quick,
        num_rounds=plan.num_rounds,
        num_streams=plan.num_streams,
        server_core=plan.server_core,
        load_core=plan.load_core,
        machine=found,
        elapsed_s=time.monotonic() - begun_s,
        figures={name: spread(values) for name, values in samples.items()},
    )


def _works(plan: _Plan, folder: Path) -> dict[str, Path]:
    """Requests whose answers are looked at whole, since ids and times in them differ."""
    workload = Workload(plan.model, api_keys=["none"])
    shapes = {
        "small": Shape(num_chats=64, body_bytes=_BODY_BYTES),
        "streams": Shape(num_chats=64, body_bytes=_STREAM_BODY_BYTES, num_events=_STREAM_TOKENS),
    }
    paths = {}
    for name, shape in shapes.items():
        work = workload.make(name, shape)
        chats = [[msgspec.structs.replace(turn, answer=b"\0") for turn in chat] for chat in work.chats]
        paths[name] = folder / f"{name}.work"
        write(msgspec.structs.replace(work, chats=chats), paths[name])
    return paths


@dataclass(frozen=True, slots=True, kw_only=True)
class _Server:
    """One that is stopped by a signal, but for its turns."""

    port: int
    process: PinnedProcess

    @contextmanager
    def turn(self) -> Iterator[int]:
        """Its port."""
        self.process.resume()
        try:
            yield self.port
        finally:
            self.process.pause()


@contextmanager
def _server(core_module: str, plan: _Plan, folder: Path) -> Iterator[_Server]:
    (port,) = free_ports(1)
    command = [sys.executable, "-m", child.__name__, str(plan.model), str(port), str(plan.num_streams), core_module]
    log = folder / f"{core_module}.log"
    with PinnedProcess("the server", command, core=plan.server_core, log=log, environment={}) as process:
        process.wait_until_answers(port, path="/health", timeout_s=_READY_TIMEOUT_S)
        process.pause()
        yield _Server(port=port, process=process)


def _round(plan: _Plan, number: int, *, works: dict[str, Path], free: _Server, paced: _Server) -> dict[str, float]:
    job = Job(first_chat=number * _CHATS_PER_ROUND, measured_s=plan.measured_s, is_exact=False)
    chat = msgspec.structs.replace(job, work=str(works["small"]), mark='"length"')
    stream = msgspec.structs.replace(
        job, work=str(works["streams"]), num_connections=plan.num_streams, mark="data: [DONE]", counted='"content":'
    )
    with free.turn() as port:
        many = _done(msgspec.structs.replace(chat, port=port), plan)
        first_chat = job.first_chat + _CHATS_PER_ROUND // 2
        alone = _done(msgspec.structs.replace(chat, port=port, num_connections=1, first_chat=first_chat), plan)
    with paced.turn() as port:
        streams = _done(msgspec.structs.replace(stream, port=port), plan)
    direct_ms = _direct_ms(plan, number)
    assert alone.times is not None
    return {
        "rate": many.num_done / many.measured_s,
        "events": streams.num_counted / streams.measured_s,
        "tokens": streams.num_done * _STREAM_TOKENS / streams.measured_s,
        "direct_p50": direct_ms,
        "http_p50": alone.times.p50,
        "added_p50": alone.times.p50 - direct_ms,
    }


def _done(job: Job, plan: _Plan) -> Outcome:
    outcome = run_job(job, core=plan.load_core)
    if outcome.error is not None:
        raise BenchProcessError(f"the server gave a wrong answer: {outcome.error[:600]}")
    return outcome


def _direct_ms(plan: _Plan, number: int) -> float:
    """One caller of the engine, whose front end and core are on the server's core."""
    with _on_core(plan.server_core):
        return uvloop.run(_call_directly(plan, number))


async def _call_directly(plan: _Plan, number: int) -> float:
    config = child.config_of(str(plan.model), num_streams=plan.num_streams)
    params = SamplingParams(temperature=0.7, max_tokens=_NUM_OUTPUT_TOKENS, ignore_eos=True)
    times_s = []
    async with AsyncLLMEngine(config, host=ProcessHost(module=null_core.__name__)) as engine:
        await engine.tokenization.wait_admitted(MODEL)
        for request in range(_NUM_WARM_UP + plan.num_direct):
            text = mixed_text(("direct", number, request), _BODY_BYTES).encode("ascii", "ignore").decode()
            text = text[: _BODY_BYTES - 300]  # as much as the requests of `Workload` hold
            begun_s = time.perf_counter()
            async for _ in engine.generate(text, params, f"direct {request}"):
                pass
            times_s.append(time.perf_counter() - begun_s)
    times_s = times_s[_NUM_WARM_UP:]
    return statistics.median(times_s) * 1e3


@contextmanager
def _on_core(core: int) -> Iterator[None]:
    """This process, and those that it starts meanwhile."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="headrace bench server", description=__doc__)
    parser.add_argument(
        "--model",
        type=Path,
        default=Path("models/demo"),
        metavar="DIR",
        help="whose tokenizer and chat template are used (default: %(default)s)",
    )
    parser.add_argument("--streams", type=int, default=128, metavar="N", help="at once (default: %(default)s)")
    parser.add_argument("--rounds", type=int, metavar="N", help=f"measured rounds (default: {_NUM_ROUNDS})")
    parser.add_argument("--quick", action="store_true", help="one short round: to see that it works")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser
