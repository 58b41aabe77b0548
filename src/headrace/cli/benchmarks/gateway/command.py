"""`headrace bench gateway`: our gateway beside the peers that are installed, each on the same one core, in turns."""

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
from rich.console import Console

from headrace.cli.benchmarks.gateway.bench import GatewayBench, Plan
from headrace.cli.benchmarks.gateway.contenders import OURS, PEERS
from headrace.cli.benchmarks.gateway.figures import PARTS
from headrace.cli.benchmarks.gateway.parts import QUICK, Scale
from headrace.cli.benchmarks.gateway.tables import show
from headrace.cli.benchmarks.progress import progress
from headrace.errors import SettingsError

_PEERS_ROOT = Path.home() / ".cache" / "headrace" / "peers"
_NUM_ROUNDS = 5
_FILE_COLUMNS = 160
"""A file or a pipe has no width, and a narrow table loses its numbers."""


def run(argv: Sequence[str]) -> int:
    """Measure and print; the exit status: 0, whether bars are met or not, and 1 when our answers were wrong.

    Raises BenchProcessError, SettingsError, WorkloadError.
    """
    arguments = _parser().parse_args(argv)
    plan = _plan(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the gateways too, which may be stopped
    with progress(Console(stderr=True, highlight=False)) as steps, tempfile.TemporaryDirectory() as folder:
        report = GatewayBench(plan, steps=steps, folder=Path(folder)).run()
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        show(report, Console(highlight=False, width=None if sys.stdout.isatty() else _FILE_COLUMNS))
    return 1 if any(row.contender == OURS and row.error is not None for row in report.rows) else 0


def _plan(arguments: argparse.Namespace) -> Plan:
    for name in ("rounds", "prompts"):
        if (value := getattr(arguments, name)) is not None and value < 1:
            raise SettingsError(f"--{name} is {value}; it must be 1 or more", param=name)
    scale = QUICK if arguments.quick else Scale()
    if arguments.prompts is not None:
        scale = replace(scale, num_prompts=arguments.prompts)
    return Plan(
        parts=_chosen(arguments.only, PARTS, param="only"),
        peers=_chosen(arguments.peers, PEERS, param="peers"),
        tokenizer=arguments.tokenizer.resolve(),
        peers_root=arguments.peers_root.resolve(),
        num_rounds=arguments.rounds or (1 if arguments.quick else _NUM_ROUNDS),
        scale=scale,
        cores=_cores(),
        is_quick=arguments.quick,
    )


def _chosen(text: str | None, known: Iterable[str], *, param: str) -> list[str]:
    """Names of `known`, all of them for None, none for `none`."""
    if text is None:
        return list(known)
    names = [] if text == "none" else [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in names if name not in known]:
        message = f"--{param} {', '.join(unknown)} is not known; there are {', '.join(known)}, and none"
        raise SettingsError(message, param=param)
    return names


def _cores() -> tuple[int, int]:
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(cores) < 2:
        raise SettingsError("this benchmark needs Linux and two cores: one for a gateway, one for its load")
    return cores[0], cores[1]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="headrace bench gateway", description=__doc__)
    parser.add_argument(
        "--tokenizer", type=Path, default=Path("models/demo"), metavar="DIR", help="default: %(default)s"
    )
    parser.add_argument(
        "--peers-root", type=Path, default=_PEERS_ROOT, metavar="DIR", help="where the peers are (default: %(default)s)"
    )
    parser.add_argument("--peers", metavar="NAMES", help=f"only these beside ours, or none: {','.join(PEERS)}")
    parser.add_argument("--only", metavar="PARTS", help=f"only these: {','.join(PARTS)}")
    parser.add_argument("--rounds", type=int, metavar="N", help=f"measured rounds (default: {_NUM_ROUNDS})")
    parser.add_argument("--prompts", type=int, metavar="N", help="distinct prompts of memory (default: 1,000,000)")
    parser.add_argument("--quick", action="store_true", help="one short round: to see that it works")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    return parser
