"""The command: which policies are replayed on which traces, Dynamo's beside them, and decisions timed."""

import argparse
import random
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import get_args

import msgspec
from rich.console import Console

from headrace._native import compiled
from headrace.cli.benchmarks import machine
from headrace.cli.benchmarks.progress import Steps, progress
from headrace.cli.benchmarks.routing.decision import DecisionBench, DecisionRow
from headrace.cli.benchmarks.routing.dynamo import TRACE_BLOCK_SIZE, AsDynamo, DynamoError, replay
from headrace.cli.benchmarks.routing.report import OURS, RouterRow, RoutingReport, TraceResult, show
from headrace.errors import InvalidRequestError, SettingsError
from headrace.gateway.routing import Draw, PolicyName
from headrace.gateway.simulation import (
    AgentWork,
    EngineModel,
    Outcome,
    Setup,
    TraceRequest,
    agent_trace,
    ceilings_of,
    read_trace,
    simulate,
)

_PEERS_ROOT = Path.home() / ".cache" / "headrace" / "peers"
_DYNAMO_MODES = ("kv_router", "round_robin")
_SESSIONS_PER_ENDPOINT = 8
_QUICK_REQUESTS = 400
_NUM_ROUNDS, _NUM_QUICK_ROUNDS = 300, 30
_SEED = 0
_FILE_COLUMNS = 120


def run(argv: Sequence[str]) -> int:
    """Measure and print; the exit status. Raises SettingsError."""
    arguments = _parser().parse_args(argv)
    for name in ("endpoints", "blocks", "block_size", "tokens", "rounds", "requests"):
        if (value := getattr(arguments, name)) is not None and value < 1:
            raise SettingsError(f"--{name.replace('_', '-')} is {value}; it must be 1 or more", param=name)
    if TRACE_BLOCK_SIZE % arguments.block_size:
        message = f"--block-size {arguments.block_size} does not divide the trace's blocks of {TRACE_BLOCK_SIZE} tokens"
        raise SettingsError(message, param="block_size")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends Dynamo's replay too
    with progress(Console(stderr=True, highlight=False)) as steps:
        report = _measured(arguments, steps)
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        show(report, Console(highlight=False, width=None if sys.stdout.isatty() else _FILE_COLUMNS))
    return 0


def _measured(arguments: argparse.Namespace, steps: Steps) -> RoutingReport:
    found, begun_s = machine.describe(), time.monotonic()
    decisions = _decisions(arguments, steps)
    notes = [] if compiled is not None else ["prompts are hashed by numpy: headrace._native was not compiled"]
    traces = [_replayed(name, requests, arguments, steps, notes) for name, requests in _traces(arguments)]
    return RoutingReport(
        is_quick=arguments.quick,
        num_endpoints=arguments.endpoints,
        num_blocks=arguments.blocks,
        block_size=arguments.block_size,
        num_decision_tokens=arguments.tokens,
        machine=found,
        elapsed_s=time.monotonic() - begun_s,
        traces=traces,
        decisions=decisions,
        notes=list(dict.fromkeys(notes)),
    )


def _decisions(arguments: argparse.Namespace, steps: Steps) -> list[DecisionRow]:
    steps.begin("decisions", num_steps=4)
    bench = DecisionBench(num_endpoints=arguments.endpoints, num_tokens=arguments.tokens)
    num_rounds = arguments.rounds or (_NUM_QUICK_ROUNDS if arguments.quick else _NUM_ROUNDS)
    return bench.measure(num_rounds=num_rounds, on_kind=steps.step)


def _traces(arguments: argparse.Namespace) -> Iterator[tuple[str, list[TraceRequest]]]:
    limit = arguments.requests or (_QUICK_REQUESTS if arguments.quick else None)
    for path in arguments.trace or ():
        yield path.name, _read(path)[:limit]
    if not arguments.trace:
        work = AgentWork(num_sessions=_SESSIONS_PER_ENDPOINT * arguments.endpoints, duration_s=60.0)
        uniform = random.Random(_SEED).random  # noqa: S311 - the same in every run
        yield "agents at work", agent_trace(work, uniform=uniform)[:limit]


def _read(path: Path) -> list[TraceRequest]:
    try:
        with path.open("rb") as lines:
            requests = [request for request in read_trace(lines) if request.hash_ids]
    except OSError as error:
        raise SettingsError(f"the trace {str(path)!r} cannot be read: {error.strerror}", param="trace") from error
    except InvalidRequestError as error:
        raise SettingsError(error.message, param="trace") from error
    if not requests:
        raise SettingsError(f"{path} holds no request whose prompt is known", param="trace")
    return requests


def _replayed(
    name: str, requests: list[TraceRequest], arguments: argparse.Namespace, steps: Steps, notes: list[str]
) -> TraceResult:
    policies = _policies(arguments)
    python = arguments.peers_root / "dynamo" / "venv" / "bin" / "python"
    modes = _DYNAMO_MODES if python.exists() else ()
    if not modes:
        notes.append("dynamo is not installed: make peers")
    steps.begin(f"{name}, {len(requests):,} requests", num_steps=len(policies) + len(modes) + 1)
    setups = {policy: _setup(arguments, policy) for policy in policies}
    ceilings = ceilings_of(requests, setups[OURS])
    steps.step()
    rows = []
    for policy, setup in setups.items():
        rows.append(_row(policy, simulate(requests, setup, draw=_draw(), ceilings=ceilings)))
        steps.step()
    for mode in modes:
        try:
            done = replay(python, requests, num_endpoints=arguments.endpoints, engine=_engine(arguments), mode=mode)
            new_policy = partial(AsDynamo, done.choices)
            outcome = simulate(requests, setups[OURS], draw=_draw(), ceilings=ceilings, new_policy=new_policy)
            rows.append(_row(f"dynamo {mode}", outcome, reported=done.reused_ratio))
        except DynamoError as error:
            notes.append(error.message)
        steps.step()
    return TraceResult(trace=name, num_requests=len(requests), ceiling_ratio=ceilings.of_capacity, rows=rows)


def _policies(arguments: argparse.Namespace) -> list[PolicyName]:
    """Ours first; all others unless it is to be quick."""
    known: tuple[PolicyName, ...] = get_args(PolicyName)
    others = ("round_robin",) if arguments.quick else known
    return [OURS, *(policy for policy in known if policy != OURS and policy in others)]


def _row(router: str, outcome: Outcome, *, reported: float | None = None) -> RouterRow:
    return RouterRow(
        router=router,
        hit_ratio=outcome.hit_ratio,
        mean_ttft_s=outcome.mean_ttft_s,
        p50_ttft_s=outcome.p50_ttft_s,
        p99_ttft_s=outcome.p99_ttft_s,
        load_spread=outcome.load_spread,
        reported_hit_ratio=reported,
    )


def _draw() -> Draw:
    return random.Random(_SEED).randrange  # noqa: S311 - the same in every run


def _setup(arguments: argparse.Namespace, policy: PolicyName) -> Setup:
    return Setup(
        policy=policy,
        num_endpoints=arguments.endpoints,
        engine=_engine(arguments),
        trace_block_size=TRACE_BLOCK_SIZE,
    )


def _engine(arguments: argparse.Namespace) -> EngineModel:
    return EngineModel(
        num_blocks=arguments.blocks,
        block_size=arguments.block_size,
        prefill_tokens_per_s=8000.0,
        decode_step_s=0.006,
        decode_step_per_request_s=0.00035,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="headrace bench routing", description=__doc__)
    parser.add_argument(
        "--trace",
        type=Path,
        action="append",
        metavar="FILE",
        help="in Mooncake's form, or a decision log; may be given several times (default: agents at work, made up)",
    )
    parser.add_argument("--requests", type=int, metavar="N", help="only the first N of each trace")
    for name, default, text in (
        ("endpoints", 8, "simulated engines"),
        ("blocks", 8000, "in the cache of each"),
        ("block-size", 64, "tokens in a block"),
        ("tokens", 131_072, "of the prompts whose decisions are timed"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"{text} (default: %(default)s)")
    parser.add_argument("--rounds", type=int, metavar="N", help=f"decisions of each kind (default: {_NUM_ROUNDS})")
    parser.add_argument(
        "--peers-root",
        type=Path,
        default=_PEERS_ROOT,
        metavar="DIR",
        help="where the peers are (default: %(default)s)",
    )
    parser.add_argument("--quick", action="store_true", help="few requests and policies: to see that it works")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    return parser
