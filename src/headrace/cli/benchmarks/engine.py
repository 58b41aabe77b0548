"""`headrace bench engine`: our engine beside the peers that are installed, each on the same one core, in turns."""

import argparse
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console

from headrace.cli.benchmarks.engine_measures import SLOTS, Workload
from headrace.cli.benchmarks.engine_run import EngineBench, Plan
from headrace.cli.benchmarks.engine_tables import show
from headrace.cli.benchmarks.progress import progress
from headrace.engine.model_config import load_model_config
from headrace.errors import SettingsError

_CACHE = Path.home() / ".cache" / "headrace"
_QUICK_TOKENS = 32
_NUM_ROUNDS = 3
_FILE_COLUMNS = 160
"""A file or a pipe has no width, and a narrow table loses its numbers."""


def run(argv: Sequence[str]) -> int:
    """Measure and print; the exit status. Raises DifferentResultError, EngineProcessError and SettingsError."""
    arguments = _parser().parse_args(argv)
    plan = _plan(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the engines too, which may be stopped
    with progress(Console(stderr=True, highlight=False)) as steps, tempfile.TemporaryDirectory() as logs:
        report = EngineBench(plan, steps=steps, logs=Path(logs)).run()
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        show(report, Console(highlight=False, width=None if sys.stdout.isatty() else _FILE_COLUMNS))
    return 0


def _plan(arguments: argparse.Namespace) -> Plan:
    if arguments.rounds is not None and arguments.rounds < 1:
        raise SettingsError(f"--rounds is {arguments.rounds}; it must be 1 or more", param="rounds")
    slots = tuple(name for name in SLOTS if arguments.only in name)
    if not slots:
        message = f"--only {arguments.only!r} is in none of the parts: {'; '.join(SLOTS)}"
        raise SettingsError(message, param="only")
    if not (arguments.model / "config.json").is_file():
        message = f"--model {arguments.model} is no model's directory; `make peers` writes the default one"
        raise SettingsError(message, param="model")
    config = load_model_config(str(arguments.model), tokenizer=None, served_model_name=None, max_model_len=None)
    num_tokens = {"num_tokens": _QUICK_TOKENS} if arguments.quick else {}
    return Plan(
        model=arguments.model,
        peers_root=arguments.peers_root,
        workload=Workload(vocab_size=config.vocab_size, **num_tokens),
        slots=slots,
        engines=tuple(name.strip().lower() for name in arguments.engines.split(",") if name.strip()),
        num_rounds=arguments.rounds or (1 if arguments.quick else _NUM_ROUNDS),
        is_quick=arguments.quick,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="headrace bench engine", description=__doc__)
    parser.add_argument(
        "--model", type=Path, default=_CACHE / "models" / "random-135m", metavar="DIR", help="default: %(default)s"
    )
    parser.add_argument(
        "--peers-root",
        type=Path,
        default=_CACHE / "peers",
        metavar="DIR",
        help="where the peers are installed (default: %(default)s)",
    )
    parser.add_argument(
        "--engines", default="", metavar="NAMES", help="only these peers beside ours, as in vllm,llama.cpp"
    )
    parser.add_argument("--only", default="", metavar="TEXT", help=f"only parts with TEXT in them: {', '.join(SLOTS)}")
    parser.add_argument("--rounds", type=int, metavar="N", help=f"measured rounds (default: {_NUM_ROUNDS})")
    parser.add_argument("--quick", action="store_true", help="one round of few tokens: to see that it works")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    return parser
