"""Our routing beside that of Dynamo's KV router, on one trace and one model of engines.

    python benchmarks/dynamo_replay.py TRACE [--endpoints 8] [--requests N]

Dynamo's offline replay (`python -m dynamo.replay`, in a virtual environment of its own: `pip install ai-dynamo==1.4.2`)
simulates engines as well, but others: its times and ours cannot be compared. What can be compared is where each sends a
request. So this runs Dynamo's replay, takes from its report which engine each request went to, and sends the same
requests to the same engines of our model. Hit rates are those of both models: Dynamo's as it reports it, and what its
choices give in ours. Its choices were made with what its own engines told it, and ours with what ours did.
"""

import argparse
import itertools
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from headrace.gateway.routing import Candidate, Choice, Draw, PolicyName, RequestFacts
from headrace.gateway.simulation import EngineModel, Outcome, Setup, TraceRequest, ceilings_of, read_trace, simulate

_DYNAMO = Path.home() / ".cache" / "headrace" / "peers" / "dynamo" / "bin" / "python"
_TRACE_BLOCK = 512


class AsDynamo:
    """Repeats choices that were made before, in the order of the requests."""

    name: PolicyName = "prefix"  # nobody asks it; a policy has one

    def __init__(self, choices: Sequence[int], *, draw: Draw = lambda _: 0) -> None:
        del draw
        self._choices = iter(choices)

    def choose(self, candidates: Sequence[Candidate], facts: RequestFacts) -> Choice:
        del candidates, facts
        return Choice(next(self._choices), "as Dynamo did")


def replayed_by_dynamo(
    python: Path, trace: Path, *, num_endpoints: int, engine: EngineModel, mode: str
) -> tuple[list[dict[str, object]], dict[str, float], float]:
    """Its requests, its report, and the wall time that it took."""
    with tempfile.TemporaryDirectory() as directory:
        report, rows = Path(directory) / "report.json", Path(directory) / "rows.jsonl"
        sizes = {"block_size": engine.block_size, "num_gpu_blocks": engine.num_blocks}
        begun_s = time.perf_counter()
        subprocess.run(
            [
                *(str(python), "-m", "dynamo.replay", str(trace), "--trace-format", "mooncake"),
                *("--trace-block-size", str(_TRACE_BLOCK), "--num-workers", str(num_endpoints)),
                *("--replay-mode", "offline", "--router-mode", mode, "--extra-engine-args", json.dumps(sizes)),
                *("--report-json", str(report), "--report-jsonl", str(rows)),
            ],
            env={"DYN_LOG": "error", "PATH": "/usr/bin:/bin", "HOME": str(Path.home())},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        wall_s = time.perf_counter() - begun_s
        lines = [json.loads(line) for line in rows.read_text().splitlines()]
        return lines, json.loads(report.read_text()), wall_s


def choices_of(rows: Sequence[dict[str, object]], requests: Sequence[TraceRequest]) -> list[int]:
    """Where each request went. Rows come in another order; equal times and lengths are equal requests."""
    found: dict[tuple[int, object, object], deque[int]] = defaultdict(deque)
    for row in rows:
        key = (round(float(str(row["arrival_time_ms"]))), row["input_length"], row["requested_output_length"])
        found[key].append(int(str(row["decode_worker_idx"])))
    return [found[round(one.timestamp), one.input_length, one.output_length].popleft() for one in requests]


def outcomes(arguments: argparse.Namespace) -> Iterator[tuple[str, Outcome, float | None]]:
    """Of each router: its name, what it makes of our engines, and the hit rate that Dynamo reports of itself."""
    engine = EngineModel(
        num_blocks=arguments.blocks,
        block_size=arguments.block_size,
        prefill_tokens_per_s=arguments.prefill_rate,
        decode_step_s=0.006,
        decode_step_per_request_s=0.00035,
    )
    setup = Setup(policy="prefix", num_endpoints=arguments.endpoints, engine=engine)
    with tempfile.TemporaryDirectory() as directory:
        trace = Path(directory) / "trace.jsonl"
        with Path(arguments.trace).open() as file:
            lines = list(itertools.islice(file, arguments.requests))
        trace.write_text("".join(lines))
        requests = read_trace(line.encode() for line in lines)
        ceilings = ceilings_of(requests, setup)
        draw = random.Random(0).randrange
        yield "headrace prefix", simulate(requests, setup, draw=draw, ceilings=ceilings), None
        for mode in ("kv_router", "round_robin"):
            rows, report, _ = replayed_by_dynamo(
                arguments.dynamo, trace, num_endpoints=arguments.endpoints, engine=engine, mode=mode
            )
            choices = choices_of(rows, requests)
            new_policy = partial(AsDynamo, choices)
            outcome = simulate(requests, setup, draw=draw, ceilings=ceilings, new_policy=new_policy)
            yield f"dynamo {mode}", outcome, report["prefix_cache_reused_ratio"]


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare our routing with Dynamo's on one trace.")
    parser.add_argument("trace", help="a trace in Mooncake's form")
    parser.add_argument("--dynamo", type=Path, default=_DYNAMO, help="a Python with ai-dynamo (default: %(default)s)")
    parser.add_argument("--requests", type=int, help="only the first N")
    for name, kind, default in (("endpoints", int, 8), ("blocks", int, 8000), ("block-size", int, 64)):
        parser.add_argument(f"--{name}", type=kind, default=default)
    parser.add_argument("--prefill-rate", type=float, default=8000.0)
    arguments = parser.parse_args()
    if not arguments.dynamo.exists():
        print(
            f"{arguments.dynamo} is not there: pip install ai-dynamo==1.4.2 in a virtual environment", file=sys.stderr
        )
        return 1
    show(list(outcomes(arguments)))
    return 0


def show(found: Sequence[tuple[str, Outcome, float | None]]) -> None:
    first = found[0][1]
    table = Table(title=f"{first.num_requests:,} requests, {first.num_endpoints} endpoints", title_justify="left")
    for at, name in enumerate(("router", "hit", "in Dynamo's own model", "TTFT mean", "p50", "p99", "spread")):
        table.add_column(name, justify="right" if at else "left")
    for name, one, reported in found:
        times = (f"{seconds:.3f} s" for seconds in (one.mean_ttft_s, one.p50_ttft_s, one.p99_ttft_s))
        told = "" if reported is None else f"{reported:.2%} of tokens"
        table.add_row(name, f"{one.hit_ratio:.2%}", told, *times, f"{one.load_spread:.3f}")
    table.caption = f"ceiling of this capacity {first.ceiling_ratio:.2%}, without limit {first.unbounded_ratio:.2%}"
    Console(width=120).print(table)


if __name__ == "__main__":
    sys.exit(main())
