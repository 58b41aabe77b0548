"""Dynamo's offline replay beside our simulation.

`python -m dynamo.replay` simulates engines as well, but others: its times and ours cannot be compared. What can be is
where each request goes. So it replays the trace, its report tells which engine each request went to, and the same
requests go to the same engines of our model. Its choices were made with what its own engines told it.
"""

import json
import subprocess
import tempfile
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headrace.errors import HeadraceError
from headrace.gateway.routing import Candidate, Choice, Draw, PolicyName, RequestFacts
from headrace.gateway.simulation import EngineModel, TraceRequest

TRACE_BLOCK_SIZE = 512
_TIMEOUT_S = 900.0
_ERROR_CHARS = 500


class DynamoError(HeadraceError):
    """Dynamo's replay failed; the message has the end of what it said."""


class AsDynamo:
    """Repeats choices that were made before, in the order of the requests."""

    name: PolicyName = "prefix"  # nobody asks it; a policy has one

    def __init__(self, choices: Sequence[int], *, draw: Draw = lambda _: 0) -> None:
        del draw
        self._choices = iter(choices)

    def choose(self, candidates: Sequence[Candidate], facts: RequestFacts) -> Choice:
        del candidates, facts
        return Choice(next(self._choices), "as Dynamo did")


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What Dynamo did."""

    choices: Sequence[int]
    """Of the engines, in the order of the requests."""
    reused_ratio: float
    """Cached tokens of all, in its own model of the engines."""


class _Row(msgspec.Struct):
    arrival_time_ms: float
    input_length: int
    requested_output_length: int
    decode_worker_idx: int


class _Report(msgspec.Struct):
    prefix_cache_reused_ratio: float


def replay(
    python: Path, requests: Sequence[TraceRequest], *, num_endpoints: int, engine: EngineModel, mode: str
) -> Replayed:
    """Run Dynamo's replay (blocking). Raises DynamoError."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        trace, report, rows = folder / "trace.jsonl", folder / "report.json", folder / "rows.jsonl"
        trace.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in _numbered_anew(requests)))
        sizes = {"block_size": engine.block_size, "num_gpu_blocks": engine.num_blocks}
        command = [
            *(str(python), "-m", "dynamo.replay", str(trace), "--trace-format", "mooncake"),
            *("--trace-block-size", str(TRACE_BLOCK_SIZE), "--num-workers", str(num_endpoints)),
            *("--replay-mode", "offline", "--router-mode", mode, "--extra-engine-args", json.dumps(sizes)),
            *("--report-json", str(report), "--report-jsonl", str(rows)),
        ]
        _run(command, environment={"DYN_LOG": "error", "PATH": "/usr/bin:/bin", "HOME": str(Path.home())})
        lines = msgspec.json.Decoder(_Row).decode_lines(rows.read_bytes())
        return Replayed(
            choices=_choices_of(lines, requests),
            reused_ratio=msgspec.json.decode(report.read_bytes(), type=_Report).prefix_cache_reused_ratio,
        )


def _run(command: Sequence[str], *, environment: Mapping[str, str]) -> None:
    try:
        done = subprocess.run(command, env=environment, capture_output=True, check=False, timeout=_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DynamoError(f"Dynamo's replay failed: {error}") from error
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()[-_ERROR_CHARS:]
        raise DynamoError(f"Dynamo's replay ended with {done.returncode}: {said}")


def _numbered_anew(requests: Sequence[TraceRequest]) -> list[TraceRequest]:
    """Blocks counted from 0, as Dynamo reads them."""
    numbers: dict[int, int] = {}
    return [
        msgspec.structs.replace(one, hash_ids=[numbers.setdefault(block, len(numbers)) for block in one.hash_ids])
        for one in requests
    ]


def _choices_of(rows: Sequence[_Row], requests: Sequence[TraceRequest]) -> list[int]:
    """Where each request went. Rows come in another order; equal times and lengths are equal requests."""
    found: dict[tuple[int, int, int], deque[int]] = defaultdict(deque)
    for row in rows:
        found[round(row.arrival_time_ms), row.input_length, row.requested_output_length].append(row.decode_worker_idx)
    places = [found[round(one.timestamp), one.input_length, one.output_length] for one in requests]
    if missing := sum(not place for place in places):
        raise DynamoError(f"Dynamo's replay does not say where {missing} of {len(requests)} requests went")
    return [place.popleft() for place in places]
