"""`headrace bench front`: what the engine costs beside the model.

Front end and core run on one core of the machine, with the real scheduler and nothing computed, and stream to many
callers at once.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import uvloop
from rich.console import Console
from rich.table import Table

from headrace.aio.tasks import TaskOwner
from headrace.cli.benchmarks import machine
from headrace.cli.benchmarks.engine_measures import NUM_PROMPT_TOKENS, Spread, Workload, spread
from headrace.cli.benchmarks.machine import Machine
from headrace.cli.benchmarks.progress import Steps, progress
from headrace.engine import AsyncEngineArgs, AsyncLLMEngine, RequestOutputKind, SamplingParams
from headrace.engine.client.host import ProcessHost
from headrace.engine.config import EngineConfig
from headrace.errors import SettingsError

BAR_TOKENS_PER_S = 20_000.0
_BAR_STREAMS = 256
_DELTAS = SamplingParams(output_kind=RequestOutputKind.DELTA)
_NULL, _PACED = (f"headrace.cli.benchmarks.{name}" for name in ("null_core", "paced_null_core"))
_WAYS = {
    "deltas of text": (_NULL, _DELTAS),
    "the whole text each time": (_NULL, SamplingParams(output_kind=RequestOutputKind.CUMULATIVE)),
    "deltas of ids, no text": (_NULL, msgspec.structs.replace(_DELTAS, detokenize=False)),
    "deltas of text, 5 ms steps": (_PACED, _DELTAS),
}
"""The core's module, and what is asked for."""
_BAR_WAYS = ("deltas of text", "deltas of text, 5 ms steps")
_NUM_ROUNDS = 5
_FILE_COLUMNS = 120


class WayResult(msgspec.Struct, frozen=True, kw_only=True):
    """Output tokens/s with one kind of output."""

    way: str
    tokens_per_s: Spread
    tokens_per_output: float
    """More than one where a caller was too late for an output, which was then joined with the next."""
    is_met: bool | None
    """The bar; None for the ways without one, and for another number of streams than the bar's."""


class FrontReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `headrace bench front --json` prints."""

    benchmark: str = "front"
    model: str
    num_streams: int
    num_tokens: int
    num_rounds: int
    machine: Machine
    ways: list[WayResult]


def run(argv: Sequence[str]) -> int:
    """Measure and print; the exit status. Raises SettingsError."""
    arguments = _parser().parse_args(argv)
    for name in ("streams", "tokens", "rounds"):
        if (value := getattr(arguments, name)) < 1:
            raise SettingsError(f"--{name} is {value}; it must be 1 or more", param=name)
    found = machine.describe()
    with progress(Console(stderr=True, highlight=False)) as steps, _on_one_core():
        ways = uvloop.run(_measured(arguments, steps))
    report = FrontReport(
        model=str(arguments.model),
        num_streams=arguments.streams,
        num_tokens=arguments.tokens,
        num_rounds=arguments.rounds,
        machine=found,
        ways=ways,
    )
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        _show(report, Console(highlight=False, width=None if sys.stdout.isatty() else _FILE_COLUMNS))
    return 0


async def _measured(arguments: argparse.Namespace, steps: Steps) -> list[WayResult]:
    config = _config(arguments.model, num_streams=arguments.streams, num_tokens=arguments.tokens)
    workload = Workload(vocab_size=config.model.vocab_size, num_tokens=arguments.tokens)
    rounds: dict[str, list[_Round]] = {way: [] for way in _WAYS}
    async with AsyncExitStack() as stack:
        engines = {
            module: await stack.enter_async_context(AsyncLLMEngine(config, host=ProcessHost(module=module)))
            for module in (_NULL, _PACED)
        }
        steps.begin(f"{arguments.streams} streams", num_steps=len(_WAYS) * (arguments.rounds + 1))
        for number in range(arguments.rounds + 1):
            for way, (module, params) in _WAYS.items():
                prompts = workload.prompts(
                    f"{way} {number}", num_prompts=arguments.streams, num_tokens=NUM_PROMPT_TOKENS
                )
                done = await _stream_all(engines[module], prompts, _of_length(params, arguments.tokens))
                if number:  # the round before the first is not counted
                    rounds[way].append(done)
                steps.step()
    return [_result(way, rounds[way], has_bar=way in _BAR_WAYS and arguments.streams == _BAR_STREAMS) for way in _WAYS]


def _config(model: Path, *, num_streams: int, num_tokens: int) -> EngineConfig:
    args = AsyncEngineArgs(
        model=str(model),
        max_model_len=NUM_PROMPT_TOKENS + num_tokens,
        max_num_seqs=num_streams,
        max_num_batched_tokens=max(2048, num_streams),
        disable_log_requests=True,
    )
    return args.create_engine_config()


def _of_length(params: SamplingParams, num_tokens: int) -> SamplingParams:
    return msgspec.structs.replace(params, temperature=0.0, ignore_eos=True, max_tokens=num_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Round:
    """All streams, once."""

    num_tokens: int
    num_outputs: int
    elapsed_s: float


async def _stream_all(engine: AsyncLLMEngine, prompts: Sequence[Sequence[int]], params: SamplingParams) -> _Round:
    async def num_outputs(number: int) -> int:
        return len([None async for _ in engine.generate(prompts[number], params, f"stream {number}")])

    begun_at = time.perf_counter()
    async with TaskOwner("streams") as owner:
        tasks = [owner.spawn(num_outputs(number), name="stream") for number in range(len(prompts))]
        total = sum([await task for task in tasks])
    assert params.max_tokens is not None
    elapsed_s = time.perf_counter() - begun_at
    return _Round(num_tokens=len(prompts) * params.max_tokens, num_outputs=total, elapsed_s=elapsed_s)


def _result(way: str, rounds: Sequence[_Round], *, has_bar: bool) -> WayResult:
    found = spread([done.num_tokens / done.elapsed_s for done in rounds])
    return WayResult(
        way=way,
        tokens_per_s=found,
        tokens_per_output=statistics.mean(done.num_tokens / done.num_outputs for done in rounds),
        is_met=found.median >= BAR_TOKENS_PER_S if has_bar else None,
    )


@contextmanager
def _on_one_core() -> Iterator[None]:
    """This process, and those that it starts meanwhile; nothing where the system cannot do that."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _show(report: FrontReport, console: Console) -> None:
    table = Table(
        f"{report.num_streams} streams of {report.num_tokens} tokens", "tokens/s", "from", "to", "tokens/output", "bar"
    )
    for row in report.ways:
        numbers = (row.tokens_per_s.median, row.tokens_per_s.lowest, row.tokens_per_s.highest)
        bar = "" if row.is_met is None else f">= {BAR_TOKENS_PER_S:,.0f}: {'met' if row.is_met else 'MISSED'}"
        table.add_row(row.way, *(f"{number:,.0f}" for number in numbers), f"{row.tokens_per_output:.2f}", bar)
    console.print(table)
    about = report.machine
    console.print(
        f"{about.cpu}, one core of {about.num_cores} for both processes, load before {about.load}; {report.model}; "
        f"{report.num_rounds} rounds"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="headrace bench front", description=__doc__)
    parser.add_argument(
        "--model",
        type=Path,
        default=Path("models/demo"),
        metavar="DIR",
        help="whose tokenizer makes the text (default: %(default)s)",
    )
    parser.add_argument("--streams", type=int, default=_BAR_STREAMS, metavar="N", help="default: %(default)s")
    parser.add_argument("--tokens", type=int, default=128, metavar="N", help="of each stream (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=_NUM_ROUNDS, metavar="N", help="default: %(default)s")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser
