"""`headrace replay TRACE`: what each routing policy would have made of recorded requests, with simulated engines."""

import argparse
import random
import shlex
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import get_args

import msgspec
from rich.console import Console
from rich.table import Table

from headrace.cli.output import check_directory_of
from headrace.cli.replay_report import report_page, size_text
from headrace.errors import InvalidRequestError, SettingsError
from headrace.gateway.routing import PolicyName
from headrace.gateway.simulation import (
    AgentWork,
    EngineModel,
    Knowledge,
    Outcome,
    Setup,
    TraceRequest,
    agent_trace,
    ceilings_of,
    read_trace,
    simulate,
)

_DECODE_STEP_S = 0.006
_DECODE_STEP_PER_REQUEST_S = 0.00035
_EPILOG = f"""\
The model of an engine: an LRU cache of --blocks blocks; prompts are computed one at a time, in order of arrival, at
--prefill-rate tokens/s, less what is cached; a request then decodes with steps of {_DECODE_STEP_S * 1e3:g} ms, and
{_DECODE_STEP_PER_REQUEST_S * 1e3:g} ms more for each other request that runs. Chunked prefill and blocks pinned by
running requests are left out.

Several gateways share nothing: each request comes to one of them by chance, and each knows the load that it has sent
itself, and of the rest what the engines say when it asks them, every 2 s; the engines' KV events reach all of them.

With several numbers of endpoints the load grows with them: arrivals come closer together, or more agents are at work,
so that an endpoint has as much to do as with the first number.

hit       cached blocks of all whole blocks of the prompts
ceiling   the same with one cache as large as all together
TTFT      from arrival to the end of the prompt's computation, simulated
decision  time of this machine to look up, choose and write down, without hashing the prompt
spread    standard deviation of the tokens computed per endpoint, in parts of their mean
index     memory of one gateway's prefix index
"""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` prints."""

    trace: str
    num_requests: int
    num_endpoints: list[int]
    num_gateways: list[int]
    knowledge: Knowledge
    engine: EngineModel
    time_scale: float
    outcomes: list[Outcome]


def run(argv: Sequence[str]) -> int:
    """Replay and print; the exit status."""
    arguments = _parser().parse_args(argv)
    _check(arguments)
    if arguments.report is not None:
        check_directory_of(Path(arguments.report), flag="--report")
    outcomes = list(_outcomes(arguments))
    report = Report(
        trace=_name_of(arguments),
        num_requests=outcomes[0].num_requests,
        num_endpoints=arguments.endpoints,
        num_gateways=arguments.gateways,
        knowledge=arguments.knowledge,
        engine=_engine(arguments),
        time_scale=arguments.time_scale,
        outcomes=outcomes,
    )
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        _show(report)
    if arguments.report is not None:
        _write_page(Path(arguments.report), report, command=shlex.join(["headrace", "replay", *argv]))
    return 0


def _outcomes(arguments: argparse.Namespace) -> Iterator[Outcome]:
    asked = arguments.policy or ["prefix"]
    policies: Sequence[PolicyName] = get_args(PolicyName) if "all" in asked else asked
    recorded = None if arguments.generate else _recorded(arguments)
    for num_endpoints in arguments.endpoints:
        requests = recorded or _generated(arguments, num_endpoints=num_endpoints)
        ceilings = None
        for num_gateways in arguments.gateways:
            for policy in policies:
                setup = _setup(arguments, policy, num_endpoints=num_endpoints, num_gateways=num_gateways)
                ceilings = ceilings or ceilings_of(requests, setup)
                draw = random.Random(arguments.seed).randrange  # noqa: S311 - the same in every run
                yield simulate(requests, setup, draw=draw, ceilings=ceilings)


def _recorded(arguments: argparse.Namespace) -> list[TraceRequest]:
    requests = _read(Path(arguments.trace))[: arguments.requests]
    if not requests:
        raise SettingsError(f"{arguments.trace} holds no request whose prompt is known", param="trace")
    return requests


def _generated(arguments: argparse.Namespace, *, num_endpoints: int) -> list[TraceRequest]:
    work = AgentWork(num_sessions=arguments.sessions * num_endpoints, duration_s=arguments.duration)
    uniform = random.Random(arguments.seed).random  # noqa: S311 - the same in every run
    requests = agent_trace(work, uniform=uniform)[: arguments.requests]
    if not requests:
        raise SettingsError(f"--requests {arguments.requests} leaves no request", param="requests")
    return requests


def _read(path: Path) -> list[TraceRequest]:
    try:
        with path.open("rb") as lines:
            return [request for request in read_trace(lines) if request.hash_ids]
    except OSError as error:
        raise SettingsError(f"the trace {str(path)!r} cannot be read: {error.strerror}", param="trace") from error
    except InvalidRequestError as error:
        raise SettingsError(error.message, param="trace") from error


def _check(arguments: argparse.Namespace) -> None:
    if (arguments.trace is None) == (arguments.generate is None):
        raise SettingsError("give a TRACE, or --generate agentic, and not both", param="trace")
    for name in (
        "endpoints",
        "gateways",
        "blocks",
        "block_size",
        "trace_block_size",
        "prefill_rate",
        "time_scale",
        "sessions",
        "duration",
    ):
        value = getattr(arguments, name)
        for one in value if isinstance(value, list) else [value]:
            if one <= 0:
                raise SettingsError(f"--{name.replace('_', '-')} is {one}; it must be more than 0", param=name)
    if arguments.trace_block_size % arguments.block_size:
        message = f"--block-size {arguments.block_size} does not divide the trace's blocks of"
        raise SettingsError(f"{message} {arguments.trace_block_size} tokens", param="block_size")


def _engine(arguments: argparse.Namespace) -> EngineModel:
    return EngineModel(
        num_blocks=arguments.blocks,
        block_size=arguments.block_size,
        prefill_tokens_per_s=arguments.prefill_rate,
        decode_step_s=_DECODE_STEP_S,
        decode_step_per_request_s=_DECODE_STEP_PER_REQUEST_S,
    )


def _setup(arguments: argparse.Namespace, policy: PolicyName, *, num_endpoints: int, num_gateways: int) -> Setup:
    grown = 1.0 if arguments.generate else num_endpoints / arguments.endpoints[0]
    return Setup(
        policy=policy,
        num_endpoints=num_endpoints,
        num_gateways=num_gateways,
        engine=_engine(arguments),
        knowledge=arguments.knowledge,
        trace_block_size=arguments.trace_block_size,
        time_scale=arguments.time_scale / grown,
    )


def _name_of(arguments: argparse.Namespace) -> str:
    if arguments.generate is None:
        return Path(arguments.trace).name
    return f"agents at work, {arguments.sessions} sessions for each endpoint in {arguments.duration:g} s"


def _model_text(report: Report) -> str:
    engine = report.engine
    return (
        f"Each endpoint: {engine.num_blocks:,} blocks of {engine.block_size} tokens, prompts computed one at a time at "
        f"{engine.prefill_tokens_per_s:,.0f} tokens/s, decode steps of {engine.decode_step_s * 1e3:g} ms and "
        f"{engine.decode_step_per_request_s * 1e3:g} ms more for each other request. Learnt from {report.knowledge}; "
        f"times of arrival x {report.time_scale:g}."
    )


def _write_page(path: Path, report: Report, *, command: str) -> None:
    title = f"Routing {report.trace}"
    try:
        path.write_text(report_page(report.outcomes, title=title, model=_model_text(report), command=command))
    except OSError as error:
        raise SettingsError(f"--report {path}: cannot be written: {error.strerror}", param="report") from error


def _show(report: Report) -> None:
    console = Console(highlight=False)
    wide = Console(highlight=False, width=console.width if console.is_terminal else 140)
    wide.print(f"{report.trace}: {report.num_requests:,} requests. {_model_text(report)}", soft_wrap=True)
    for size, outcomes in groupby(report.outcomes, key=size_text):
        wide.print(_table_of(size, list(outcomes)))


def _table_of(size: str, outcomes: Sequence[Outcome]) -> Table:
    first = outcomes[0]
    table = Table(title=size, title_justify="left", title_style="", caption_justify="left")
    table.caption = f"ceiling of this capacity {first.ceiling_ratio:.2%}, without limit {first.unbounded_ratio:.2%}"
    table.add_column("policy")
    for column in ("hit", "TTFT mean", "p50", "p99", "decision p50", "p99", "max", "spread", "index"):
        table.add_column(column, justify="right", no_wrap=True)
    for one in outcomes:
        table.add_row(
            one.policy,
            f"{one.hit_ratio:.2%}",
            *(f"{ttft_s:.3f} s" for ttft_s in (one.mean_ttft_s, one.p50_ttft_s, one.p99_ttft_s)),
            *(f"{us:,.0f} us" for us in (one.decision_p50_us, one.decision_p99_us, one.decision_max_us)),
            f"{one.load_spread:.3f}",
            f"{one.index_bytes / 2**20:.1f} MiB",
        )
    return table


def _whole_numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of whole numbers such as 8,64") from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="headrace replay",
        description="Route recorded requests (Mooncake's traces, or the gateway's decision log) to simulated engines.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "trace", metavar="TRACE", nargs="?", help="JSON lines: timestamp (ms), input_length, output_length, hash_ids"
    )
    parser.add_argument("--generate", choices=["agentic"], help="make up a trace: agents with tools, in long sessions")
    parser.add_argument(
        "--policy",
        action="append",
        choices=[*get_args(PolicyName), "all"],
        help="one to replay; may be given several times (default: prefix)",
    )
    for name, default, text in (("endpoints", [8], "engines"), ("gateways", [1], "gateways that share nothing")):
        help_text = f"{text}; several numbers, with commas, are run one after the other (default: {default[0]})"
        parser.add_argument(f"--{name}", type=_whole_numbers, default=default, metavar="N[,N]", help=help_text)
    _add_numbers(parser)
    parser.add_argument("--requests", type=int, metavar="N", help="only the first N requests")
    parser.add_argument(
        "--knowledge",
        choices=get_args(Knowledge),
        default="events",
        help="learn from the engines' KV events, or from own decisions and their answers only (default: %(default)s)",
    )
    parser.add_argument("--report", metavar="FILE", help="write an HTML page with charts, which needs nothing else")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser


def _add_numbers(parser: argparse.ArgumentParser) -> None:
    numbers: tuple[tuple[str, type[int | float], int | float, str], ...] = (
        ("blocks", int, 8000, "blocks in the cache of each"),
        ("block-size", int, 64, "tokens in a block"),
        ("trace-block-size", int, 512, "tokens behind each of the trace's hash_ids"),
        ("prefill-rate", float, 8000.0, "prompt tokens that an engine computes in a second"),
        ("time-scale", float, 1.0, "what the times of arrival are multiplied by"),
        ("sessions", int, 8, "agents' sessions for each endpoint, with --generate"),
        ("duration", float, 60.0, "seconds in which they begin"),
        ("seed", int, 0, "of all that is left to chance"),
    )
    for name, kind, default, text in numbers:
        metavar = "N" if kind is int else "X"
        parser.add_argument(
            f"--{name}", type=kind, default=default, metavar=metavar, help=f"{text} (default: {default:g})"
        )
