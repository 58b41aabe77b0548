"""`headrace bench NAME`: measures, shows progress, and prints tables or JSON.

The benchmarks of encoding are run from here; those of the engine have modules and flags of their own.
"""

import argparse
import asyncio
import importlib
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import msgspec
import uvloop
from rich.console import Console

from headrace.cli.benchmarks import chats, libraries, machine, memory, worst_cases
from headrace.cli.benchmarks.callers import caller_groups
from headrace.cli.benchmarks.encoding import MODEL, Encoders, encoding_groups
from headrace.cli.benchmarks.loop import measure_lag, scenarios
from headrace.cli.benchmarks.progress import Steps, progress
from headrace.cli.benchmarks.report import Report
from headrace.cli.benchmarks.rounds import Group, Row, measure
from headrace.cli.benchmarks.tables import show
from headrace.cli.benchmarks.templates import TEMPLATES
from headrace.errors import SettingsError
from headrace.tokenization.service import TokenizationService

_WITH_OWN_FLAGS = {
    "engine": ("headrace.cli.benchmarks.engine", "our engine beside the peers that are installed"),
    "gateway": ("headrace.cli.benchmarks.gateway.command", "our gateway beside the peers that are installed"),
    "routing": (
        "headrace.cli.benchmarks.routing.command",
        "policies on a trace, beside Dynamo's router; decision times",
    ),
    "server": ("headrace.cli.benchmarks.server.command", "what the server costs beside the engine behind it"),
    "front": ("headrace.cli.benchmarks.front", "the engine's front end over a core that computes nothing"),
    "serve": ("headrace.cli.bench_serve.command", "any OpenAI endpoint, under a load like vLLM's bench serve"),
}
"""Loaded when chosen: they import the engine."""
_PEERS_ROOT = Path.home() / ".cache" / "headrace" / "peers"
_MAX_HOSTILE_ROUNDS = 5
_NUM_QUICK_FAMILIES = 2
_FILE_COLUMNS = 140
"""A file or a pipe has no width, and a table cut to 80 columns loses its numbers."""


def run(argv: Sequence[str]) -> int:
    """Measure and print; the exit status."""
    if argv and argv[0] in _WITH_OWN_FLAGS:
        module, _ = _WITH_OWN_FLAGS[argv[0]]
        return int(importlib.import_module(module).run(argv[1:]))
    arguments = _parser().parse_args(argv)
    for name in ("rounds", "prompts"):
        if (value := getattr(arguments, name)) is not None and value < 1:
            raise SettingsError(f"--{name} is {value}; it must be 1 or more", param=name)
    report = uvloop.run(_measured(arguments, Console(stderr=True, highlight=False)))
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        show(report, Console(highlight=False, width=None if sys.stdout.isatty() else _FILE_COLUMNS))
    return 0


async def _measured(arguments: argparse.Namespace, console: Console) -> Report:
    num_rounds = arguments.rounds or _NUM_ROUNDS[arguments.benchmark][arguments.quick]
    found, begun_s = machine.describe(), time.perf_counter()
    async with TokenizationService() as service:
        encoders = await _encoders(arguments, service)
        with progress(console) as steps:
            results = await _BENCHMARKS[arguments.benchmark](arguments, encoders, num_rounds, steps)
    return Report(
        benchmark=arguments.benchmark,
        tokenizer=arguments.tokenizer,
        is_quick=arguments.quick,
        num_rounds=num_rounds,
        machine=found,
        elapsed_s=time.perf_counter() - begun_s,
        **results,
    )


async def _encoders(arguments: argparse.Namespace, service: TokenizationService) -> Encoders:
    path = Path(arguments.tokenizer)
    tokenizer = await service.load(MODEL, path)
    await service.wait_admitted(MODEL)  # else the first rounds would measure the encoder before it was admitted
    return await asyncio.to_thread(Encoders.load, path, tokenizer=tokenizer, service=service)


async def _bench_tokenization(
    arguments: argparse.Namespace, encoders: Encoders, num_rounds: int, steps: Steps
) -> dict[str, Any]:
    """The parts whose titles have the text of `--only` in them, by field of the report."""
    results: dict[str, Any] = {}
    makers = (encoding_groups, caller_groups)
    groups = [group for make in makers for group in make(encoders, is_quick=arguments.quick)]
    if wanted := [group for group in groups if arguments.only in group.title]:
        results["rows"] = await _measure_groups(wanted, num_rounds, steps)
    if arguments.only in libraries.TITLE:
        rows, results["notes"] = await _measure_libraries(arguments, encoders, num_rounds, steps)
        results["rows"] = [*results.get("rows", []), *rows]
    for field, (title, measure_part) in _PARTS.items():
        if arguments.only in title:
            results[field] = await measure_part(arguments, encoders, num_rounds, steps)
    if not results:
        titles = [*(group.title for group in groups), libraries.TITLE, *(title for title, _ in _PARTS.values())]
        raise SettingsError(f"--only {arguments.only!r} is in none of the titles: {'; '.join(titles)}", param="only")
    return results


async def _measure_groups(groups: Sequence[Group], num_rounds: int, steps: Steps) -> list[Row]:
    rows: list[Row] = []
    for group in groups:
        steps.begin(group.title, num_steps=num_rounds + 1)
        rows += await measure(group, num_rounds=num_rounds, on_round=steps.step)
    return rows


async def _measure_libraries(
    arguments: argparse.Namespace, encoders: Encoders, num_rounds: int, steps: Steps
) -> tuple[list[Row], list[str]]:
    """Rows, and what is left out."""
    peers = libraries.installed(arguments.peers_root, Path(arguments.tokenizer))
    if peers is None:
        return [], ["other tokenizer libraries are not installed: make peers"]
    num_tokens = (1000,) if arguments.quick else (4000, 128_000)
    try:
        async with peers:
            groups, notes = await libraries.library_groups(encoders, peers, num_tokens=num_tokens)
            return await _measure_groups(groups, num_rounds, steps), notes
    except libraries.LibrariesError as error:
        return [], [error.message]


async def _measure_chats(arguments: argparse.Namespace, encoders: Encoders, num_rounds: int, steps: Steps) -> Any:
    families = tuple(TEMPLATES)[: _NUM_QUICK_FAMILIES if arguments.quick else None]
    steps.begin(chats.TITLE, num_steps=len(families))
    return await chats.measure_chats(
        encoders, families, num_turns=3 if arguments.quick else 20, num_rounds=num_rounds, on_family=steps.step
    )


async def _measure_memory(arguments: argparse.Namespace, encoders: Encoders, num_rounds: int, steps: Steps) -> Any:
    del encoders, num_rounds  # it has a process of its own, and one round
    num_prompts = arguments.prompts or (3000 if arguments.quick else 100_000)
    steps.begin(f"{memory.TITLE}: {num_prompts:,} prompts", num_steps=1)
    return await memory.measure_memory(Path(arguments.tokenizer), num_prompts=num_prompts)


async def _measure_worst_cases(arguments: argparse.Namespace, encoders: Encoders, num_rounds: int, steps: Steps) -> Any:
    num_rounds = min(num_rounds, _MAX_HOSTILE_ROUNDS)
    steps.begin(worst_cases.TITLE, num_steps=len(worst_cases.case_names(encoders)) * num_rounds)
    num_chars = 20_000 if arguments.quick else 1_000_000
    return await worst_cases.measure_worst_cases(
        encoders, num_chars=num_chars, num_rounds=num_rounds, on_round=steps.step
    )


async def _bench_loop(
    arguments: argparse.Namespace, encoders: Encoders, num_rounds: int, steps: Steps
) -> dict[str, Any]:
    steps.begin("lag while clients send long prompts", num_steps=len(scenarios(encoders)) * num_rounds)
    lag = await measure_lag(
        encoders,
        num_clients=8 if arguments.quick else 50,
        num_tokens=10_000 if arguments.quick else 100_000,
        num_rounds=num_rounds,
        on_round=steps.step,
    )
    return {"lag": lag}


_Measure = Callable[[argparse.Namespace, Encoders, int, Steps], Coroutine[Any, Any, Any]]
_PARTS: dict[str, tuple[str, _Measure]] = {
    "chats": (chats.TITLE, _measure_chats),
    "memory": (memory.TITLE, _measure_memory),
    "worst_cases": (worst_cases.TITLE, _measure_worst_cases),
}
_BENCHMARKS: dict[str, _Measure] = {"tokenization": _bench_tokenization, "loop": _bench_loop}
_NUM_ROUNDS = {"tokenization": {False: 7, True: 1}, "loop": {False: 3, True: 1}}
"""By benchmark, and whether it is quick."""


def _parser() -> argparse.ArgumentParser:
    others = "\n".join(f"  {name:8}{text}" for name, (_, text) in _WITH_OWN_FLAGS.items())
    parser = argparse.ArgumentParser(
        prog="headrace bench",
        description="Measure how texts become ids, or what that does to the event loop.",
        epilog=f"others, with flags of their own (headrace bench NAME --help):\n{others}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("benchmark", choices=_BENCHMARKS, help="what to measure")
    parser.add_argument(
        "--tokenizer",
        default="models/demo",
        metavar="PATH",
        help="a model's directory, or a tokenizer.json (default: %(default)s)",
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="measured rounds (default: 7, the loop 3)")
    parser.add_argument(
        "--prompts", type=int, metavar="N", help="of tokenization, distinct prompts for memory (default: 100,000)"
    )
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="of tokenization, only the parts whose title has TEXT in it"
    )
    parser.add_argument(
        "--peers-root",
        type=Path,
        default=_PEERS_ROOT,
        metavar="DIR",
        help="of tokenization, where other libraries are (default: %(default)s)",
    )
    parser.add_argument("--quick", action="store_true", help="small inputs and few rounds: to see that it works")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    return parser
