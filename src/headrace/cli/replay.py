"""`headrace replay TRACE`: what each routing policy would have made of recorded requests, with simulated engines."""

import argparse
import random
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import msgspec
from rich.console import Console
from rich.table import Table

from headrace.errors import InvalidRequestError, SettingsError
from headrace.gateway.routing import PolicyName
from headrace.gateway.simulation import EngineModel, Knowledge, Outcome, Setup, TraceRequest, read_trace, simulate

_DECODE_STEP_S = 0.006
_DECODE_STEP_PER_REQUEST_S = 0.00035
_EPILOG = f"""\
The model of an engine: an LRU cache of --blocks blocks; prompts are computed one at a time, in order of arrival, at
--prefill-rate tokens/s, less what is cached; a request then decodes with steps of {_DECODE_STEP_S * 1e3:g} ms, and
{_DECODE_STEP_PER_REQUEST_S * 1e3:g} ms more for each other request that runs. Chunked prefill and blocks pinned by
running requests are left out.

hit       cached blocks of all whole blocks of the prompts
ceiling   the same with one cache as large as all together
TTFT      from arrival to the end of the prompt's computation, simulated
decision  time of this machine to look up, choose and write down, without hashing the prompt
spread    standard deviation of the tokens computed per endpoint, in parts of their mean
"""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` prints."""

    trace: str
    num_requests: int
    num_endpoints: int
    knowledge: Knowledge
    engine: EngineModel
    time_scale: float
    outcomes: list[Outcome]


def run(argv: Sequence[str]) -> int:
    """Replay and print; the exit status."""
    arguments = _parser().parse_args(argv)
    _check(arguments)
    requests = _read(Path(arguments.trace))[: arguments.requests]
    if not requests:
        raise SettingsError(f"{arguments.trace} holds no request whose prompt is known", param="trace")
    asked = arguments.policy or ["prefix"]
    policies: Sequence[PolicyName] = get_args(PolicyName) if "all" in asked else asked
    outcomes = []
    for policy in policies:
        draw = random.Random(arguments.seed).randrange  # noqa: S311 - the same in every run
        outcomes.append(simulate(requests, _setup(arguments, policy), draw=draw))
    report = Report(
        trace=Path(arguments.trace).name,
        num_requests=len(requests),
        num_endpoints=arguments.endpoints,
        knowledge=arguments.knowledge,
        engine=_engine(arguments),
        time_scale=arguments.time_scale,
        outcomes=outcomes,
    )
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        _show(report)
    return 0


def _read(path: Path) -> list[TraceRequest]:
    try:
        with path.open("rb") as lines:
            return [request for request in read_trace(lines) if request.hash_ids]
    except OSError as error:
        raise SettingsError(f"the trace {str(path)!r} cannot be read: {error.strerror}", param="trace") from error
    except InvalidRequestError as error:
        raise SettingsError(error.message, param="trace") from error


def _check(arguments: argparse.Namespace) -> None:
    for name in ("endpoints", "blocks", "block_size", "trace_block_size", "prefill_rate", "time_scale"):
        if (value := getattr(arguments, name)) <= 0:
            raise SettingsError(f"--{name.replace('_', '-')} is {value}; it must be more than 0", param=name)
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


def _setup(arguments: argparse.Namespace, policy: PolicyName) -> Setup:
    return Setup(
        policy=policy,
        num_endpoints=arguments.endpoints,
        engine=_engine(arguments),
        knowledge=arguments.knowledge,
        trace_block_size=arguments.trace_block_size,
        time_scale=arguments.time_scale,
    )


def _show(report: Report) -> None:
    engine, first = report.engine, report.outcomes[0]
    title = (
        f"{report.trace}: {report.num_requests:,} requests, {report.num_endpoints} endpoints of {engine.num_blocks:,} "
        f"blocks of {engine.block_size} tokens, {engine.prefill_tokens_per_s:,.0f} tokens/s; learnt from "
        f"{report.knowledge}"
    )
    table = Table(title=title, title_justify="left", title_style="", caption_justify="left")
    table.caption = f"ceiling of this capacity {first.ceiling_ratio:.2%}, without limit {first.unbounded_ratio:.2%}"
    table.add_column("policy")
    for column in ("hit", "TTFT mean", "p50", "p99", "decision p50", "p99", "max", "spread", "index"):
        table.add_column(column, justify="right", no_wrap=True)
    for one in report.outcomes:
        table.add_row(
            one.policy,
            f"{one.hit_ratio:.2%}",
            *(f"{ttft_s:.3f} s" for ttft_s in (one.mean_ttft_s, one.p50_ttft_s, one.p99_ttft_s)),
            *(f"{us:,.0f} us" for us in (one.decision_p50_us, one.decision_p99_us, one.decision_max_us)),
            f"{one.load_spread:.3f}",
            f"{one.index_bytes / 2**20:.1f} MiB",
        )
    console = Console(highlight=False)
    Console(highlight=False, width=console.width if console.is_terminal else 140).print(table)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="headrace replay",
        description="Route recorded requests (Mooncake's traces, or the gateway's decision log) to simulated engines.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "trace", metavar="TRACE", help="JSON lines: timestamp (ms), input_length, output_length, hash_ids"
    )
    parser.add_argument(
        "--policy",
        action="append",
        choices=[*get_args(PolicyName), "all"],
        help="one to replay; may be given several times (default: prefix)",
    )
    numbers: tuple[tuple[str, type[int | float], int | float, str], ...] = (
        ("endpoints", int, 8, "engines"),
        ("blocks", int, 8000, "blocks in the cache of each"),
        ("block-size", int, 64, "tokens in a block"),
        ("trace-block-size", int, 512, "tokens behind each of the trace's hash_ids"),
        ("prefill-rate", float, 8000.0, "prompt tokens that an engine computes in a second"),
        ("time-scale", float, 1.0, "what the times of arrival are multiplied by"),
        ("seed", int, 0, "of the policy that draws"),
    )
    for name, kind, default, text in numbers:
        metavar = "N" if kind is int else "X"
        parser.add_argument(
            f"--{name}", type=kind, default=default, metavar=metavar, help=f"{text} (default: {default:g})"
        )
    parser.add_argument("--requests", type=int, metavar="N", help="only the first N requests")
    parser.add_argument(
        "--knowledge",
        choices=get_args(Knowledge),
        default="events",
        help="learn from the engines' KV events, or from own decisions and their answers only (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser
