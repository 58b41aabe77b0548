"""The measures of the guard: seconds each, of a tree's package, with texts and load from here."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.guarding.trees import Tree
from benchmarks.guarding.verdict import Measure
from headrace.cli.benchmarks.corpus import mixed_text
from headrace.cli.benchmarks.gateway import contenders
from headrace.cli.benchmarks.gateway.job import Job
from headrace.cli.benchmarks.gateway.process import (
    BenchProcessError,
    PinnedProcess,
    free_ports,
    run_job,
    start_upstream,
)
from headrace.cli.benchmarks.gateway.workload import Shape, Workload, write
from headrace.errors import HeadraceError

_IN_TREE = Path(__file__).with_name("in_tree.py")
_TIMEOUT_S = 120.0
_CHARS_4K, _HIT_CHARS = 14_000, 32 * 1024
_TURN_CHARS = 1800
_NUM_TEXTS, _NUM_TURNS = 20, 20
_GATEWAY_S = 2.0
_READY_TIMEOUT_S = 30.0


class MeasureError(HeadraceError):
    """A tree cannot be measured so: it has not what the measure needs, or fails."""


Take = Callable[[Tree, int], float]
"""One round of a tree, by its number (blocking). Raises MeasureError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A measure, and how it is taken."""

    measure: Measure
    take: Take


def all_measures(model: Path, tokenizer: Path) -> list[Taken]:
    """`model` is a directory with a chat template, `tokenizer` what texts are encoded with."""
    return [
        Taken(
            measure=Measure(name="fresh text, 4k tokens", unit="ms"), take=_service("tokenize-4k", tokenizer, _fresh)
        ),
        Taken(measure=Measure(name="hit on a long text", unit="us"), take=_service("hit", tokenizer, _long)),
        Taken(measure=Measure(name="turn 20 of a chat", unit="ms"), take=_service("turn-20", tokenizer, _turns)),
        Taken(
            measure=Measure(name="gateway, chats of 2 KiB", unit="requests/s", is_higher_better=True),
            take=lambda tree, number: _gateway_rate(tree, number, model=model),
        ),
        Taken(
            measure=Measure(name="engine's front end", unit="tokens/s", is_higher_better=True),
            take=lambda tree, _: _in_tree(tree, "front", model, []),
        ),
    ]


def _fresh(number: int) -> list[str]:
    return [mixed_text(("guard", number, text), _CHARS_4K) for text in range(_NUM_TEXTS)]


def _long(number: int) -> list[str]:
    return [mixed_text(("guard hit", number), _HIT_CHARS)]


def _turns(number: int) -> list[str]:
    text = mixed_text(("guard turns", number), _CHARS_4K + _NUM_TURNS * _TURN_CHARS)
    return [text[: _CHARS_4K + turn * _TURN_CHARS] for turn in range(1, _NUM_TURNS + 1)]


def _service(name: str, tokenizer: Path, make_texts: Callable[[int], list[str]]) -> Take:
    return lambda tree, number: _in_tree(tree, name, tokenizer, make_texts(number))


def _in_tree(tree: Tree, name: str, model: Path, texts: Sequence[str]) -> float:
    try:
        done = subprocess.run(
            [sys.executable, str(_IN_TREE), name, str(model)],
            input=json.dumps(texts).encode(),
            env={**os.environ, "PYTHONPATH": tree.python_path},
            capture_output=True,
            check=False,
            timeout=_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise MeasureError(f"{name} of {tree.name} was not done in {_TIMEOUT_S:g} s") from error
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()[-400:]
        raise MeasureError(f"{name} of {tree.name} failed: {said}")
    return float(json.loads(done.stdout.splitlines()[-1]))


def _gateway_rate(tree: Tree, number: int, *, model: Path) -> float:
    """Requests/s of the tree's gateway with everything on. The load and the endpoints are this tree's."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(cores) < 2:
        raise MeasureError("the gateway needs Linux and two cores: one for it, one for its load")
    with TemporaryDirectory() as directory, ExitStack() as stack:
        folder = Path(directory)
        keys_file, work = folder / "keys.yaml", folder / "small.work"
        keys = contenders.new_keys_file(keys_file)
        write(Workload(model, api_keys=keys).make("guard", Shape(num_chats=64, body_bytes=2048)), work)
        *upstream_ports, port, spare_port = free_ports(4)
        place = contenders.Place(
            port=port,
            spare_port=spare_port,
            upstream_ports=upstream_ports,
            folder=folder,
            tokenizer=model,
            peers_root=folder,
        )
        ours = contenders.ours(place, keys_file=keys_file, version=tree.name)
        ours = replace(ours, environment={"PYTHONPATH": tree.python_path})
        try:
            stack.enter_context(start_upstream(upstream_ports, core=cores[1], log=folder / "endpoints.log"))
            gateway = stack.enter_context(
                PinnedProcess(
                    ours.name, ours.command, core=cores[0], log=folder / "gateway.log", environment=ours.environment
                )
            )
            gateway.wait_until_answers(port, path="/health", timeout_s=_READY_TIMEOUT_S)
            job = Job(port=port, work=str(work), first_chat=number * 1_000_000, warm_up_s=2.0, measured_s=_GATEWAY_S)
            done = run_job(job, core=cores[1])
        except BenchProcessError as error:
            raise MeasureError(f"the gateway of {tree.name}: {error.message}") from error
    if done.error is not None:
        raise MeasureError(f"the gateway of {tree.name} gave a wrong answer: {done.error[:300]}")
    return done.num_done / done.measured_s
