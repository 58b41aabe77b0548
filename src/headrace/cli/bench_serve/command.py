"""The command: flags in, load, report out."""

import argparse
import asyncio
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import uvloop
from rich.console import Console

from headrace.cli.bench_serve.arrivals import arrival_times_s
from headrace.cli.bench_serve.client import LoadClient
from headrace.cli.bench_serve.load import send_all
from headrace.cli.bench_serve.prompts import PromptMaker
from headrace.cli.bench_serve.report import LoadReport, make_report, show
from headrace.cli.bench_serve.settings import LoadSettings
from headrace.cli.bench_serve.workloads import Work, make_work
from headrace.cli.benchmarks import machine
from headrace.cli.benchmarks.progress import Steps, progress
from headrace.cli.flags import add_flags
from headrace.cli.output import check_directory_of
from headrace.cli.settings import resolve
from headrace.errors import SettingsError
from headrace.tokenization import load_tokenizer

_FILE_COLUMNS = 120


def run(argv: Sequence[str]) -> int:
    """Load the server and print; 1 when a request failed. Raises SettingsError and UpstreamError."""
    arguments = _parser().parse_args(argv)
    settings = resolve(LoadSettings, section="bench_serve", flags=vars(arguments), file={}, environment={}).settings
    if arguments.result_file:
        check_directory_of(Path(arguments.result_file), flag="--result-file")
    with progress(Console(stderr=True, highlight=False)) as steps:
        report = uvloop.run(_measured(settings, steps))
    encoded = msgspec.json.format(msgspec.json.encode(report), indent=2)
    if arguments.result_file:
        _write(Path(arguments.result_file), encoded)
    if arguments.json:
        print(encoded.decode())
    else:
        show(report, Console(highlight=False, width=None if sys.stdout.isatty() else _FILE_COLUMNS))
    return 1 if report.failed else 0


async def _measured(settings: LoadSettings, steps: Steps) -> LoadReport:
    found = machine.describe()
    client = LoadClient(settings)
    try:
        work = await asyncio.to_thread(_make_work, settings)  # first: what is wrong in it is told at once
        await client.wait_ready()
        for number in range(settings.num_warmups):
            await client.send(work[number % len(work)])
        steps.begin(f"{settings.dataset_name} at {settings.base_url}", num_steps=len(work))
        begun_s = time.perf_counter()
        results = await send_all(
            client, work, _times(work, settings), max_concurrency=settings.max_concurrency, on_end=steps.step
        )
        duration_s = time.perf_counter() - begun_s
    finally:
        await client.aclose()
    return make_report(results, settings, model=client.model, duration_s=duration_s, machine=found)


def _make_work(settings: LoadSettings) -> list[Work]:
    tokenizer = load_tokenizer(settings.tokenizer) if settings.tokenizer is not None else None
    return make_work(settings, PromptMaker(tokenizer, seed=settings.seed))


def _times(work: Sequence[Work], settings: LoadSettings) -> list[float]:
    own = [one.at_s for one in work if one.at_s is not None]
    if len(own) == len(work) and math.isinf(settings.request_rate):
        return own
    return arrival_times_s(len(work), rate=settings.request_rate, burstiness=settings.burstiness, seed=settings.seed)


def _write(path: Path, report: bytes) -> None:
    try:
        path.write_bytes(report + b"\n")
    except OSError as error:
        raise SettingsError(
            f"--result-file {path}: cannot be written: {error.strerror}", param="result_file"
        ) from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="headrace bench serve",
        description="Load any OpenAI endpoint with an open loop of streamed requests, and say how it answered.",
    )
    add_flags(parser, LoadSettings)
    parser.add_argument("--result-file", metavar="FILE", help="write the report there, as JSON, too")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    return parser
