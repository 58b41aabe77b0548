"""One run of `headrace bench engine`: starts the engines, compares their ids, and measures them in turns.

The order is that of `EngineBench.run`. A peer that fails is reported and left out; if ours does, the run ends.
"""

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from headrace.cli.benchmarks import machine
from headrace.cli.benchmarks.engine_bars import BARS, EngineResult, check
from headrace.cli.benchmarks.engine_child import Ids, Json
from headrace.cli.benchmarks.engine_measures import (
    LONG_PROMPT_TOKENS,
    NUM_COMPARED_TOKENS,
    NUM_PROMPT_TOKENS,
    SLOTS,
    Samples,
    Workload,
    num_matching,
    spread,
)
from headrace.cli.benchmarks.engine_peers import (
    converted_path,
    installed_peers,
    our_engines,
    our_float32,
    reference_of,
)
from headrace.cli.benchmarks.engine_process import EngineProcess, EngineProcessError, EngineSpec, convert
from headrace.cli.benchmarks.engine_report import EngineReport
from headrace.cli.benchmarks.progress import Steps
from headrace.cli.benchmarks.rounds import DifferentResultError

_NUM_STREAMS = 64
_BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to measure, and how often."""

    model: Path
    peers_root: Path
    workload: Workload
    slots: tuple[str, ...]
    engines: tuple[str, ...]
    """Beginnings of the names of peers, without regard to case; none for all."""
    num_rounds: int
    is_quick: bool

    def wants_peer(self, spec: EngineSpec) -> bool:
        return not self.engines or spec.name.lower().startswith(self.engines)

    def measures(self, spec: EngineSpec) -> bool:
        """Whether any part that is wanted is one of the engine's."""
        return spec.slots is None or not set(spec.slots).isdisjoint(self.slots)


class EngineBench:
    """Runs one plan. Blocking throughout: nothing of ours computes while an engine is measured."""

    def __init__(self, plan: Plan, *, steps: Steps, logs: Path) -> None:
        self._plan = plan
        self._steps = steps
        self._logs = logs
        self._core = max(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
        self._notes: list[str] = []

    def run(self) -> EngineReport:
        """Raises DifferentResultError when our ids in float32 are not the reference's, and EngineProcessError."""
        begun_at, found = time.perf_counter(), machine.describe()
        ours, peers = self._specs()
        reference = self._reference(peers)
        with ExitStack() as stack:
            engines = self._start([*filter(self._plan.measures, ours), *filter(self._plan.wants_peer, peers)], stack)
            matching = self._matching(engines, reference)
            samples = self._measure(engines)
            results = [_result(engine, samples[engine], matching.get(engine)) for engine in engines]
        return EngineReport(
            model=str(self._plan.model),
            is_quick=self._plan.is_quick,
            num_rounds=self._plan.num_rounds,
            core=self._core,
            machine=found,
            elapsed_s=time.perf_counter() - begun_at,
            engines=results,
            bars=check(BARS, results),
            notes=self._notes,
        )

    def _specs(self) -> tuple[list[EngineSpec], list[EngineSpec]]:
        """Ours, and the peers that are installed."""
        ours, notes = our_engines(self._plan.model, self._common_options())
        peers = installed_peers(self._plan.peers_root, self._common_options())
        self._notes += notes
        if not peers:
            message = (
                f"no peers are installed in {self._plan.peers_root} (`make peers` does it): ours is measured alone"
            )
            self._notes.append(message)
        return ours, peers

    def _common_options(self) -> Json:
        num_tokens = self._plan.workload.num_tokens
        return {
            "core": self._core,
            "num_streams": _NUM_STREAMS,
            "stream_len": NUM_PROMPT_TOKENS + num_tokens + _BLOCK_TOKENS,  # the last block may not be full
            "max_model_len": LONG_PROMPT_TOKENS + num_tokens,
        }

    def _reference(self, peers: Sequence[EngineSpec]) -> Ids | None:
        """The reference's ids, after ours in float32 were found to be the same."""
        reference = reference_of(peers)
        if reference is None:
            self._notes.append("ids are not compared: transformers, which decides what is right, is not installed")
            return None
        prompts = self._plan.workload.compared()
        ids = []
        self._steps.begin("ids in float32", num_steps=2)
        for spec in (reference, our_float32(self._common_options())):
            with EngineProcess.start(spec, model=self._plan.model, logs=self._logs) as engine:
                ids.append(engine.generate(prompts, num_tokens=NUM_COMPARED_TOKENS).ids)
            self._steps.step()
        expected, own = ids
        if own != expected:
            message = f"headrace in float32 gives other ids than transformers: {num_matching(own, expected)} of "
            raise DifferentResultError(f"{message}{NUM_COMPARED_TOKENS} tokens agree for each prompt")
        return expected

    def _start(self, specs: Sequence[EngineSpec], stack: ExitStack) -> list[EngineProcess]:
        engines = []
        self._steps.begin("start", num_steps=len(specs))
        for spec in specs:
            try:
                engines.append(stack.enter_context(self._start_one(spec)))
            except EngineProcessError as error:
                self._drop(spec, error)
            self._steps.step()
        return engines

    def _start_one(self, spec: EngineSpec) -> EngineProcess:
        model = self._plan.model
        if spec.converted_suffix is not None:
            model = converted_path(spec, model=model, root=self._plan.peers_root)
            if not model.exists():
                convert(spec, model=self._plan.model, out=model, logs=self._logs)
        return EngineProcess.start(spec, model=model, logs=self._logs)

    def _drop(self, spec: EngineSpec, error: EngineProcessError) -> None:
        """Go on without it, if it is not ours."""
        if spec.is_required:
            raise error
        self._notes.append(f"{spec.name} is left out: {error.message}")

    def _matching(self, engines: list[EngineProcess], reference: Ids | None) -> Mapping[EngineProcess, list[int]]:
        matching = {}
        prompts = self._plan.workload.compared()
        for engine in list(engines) if reference is not None else ():
            try:
                ids = engine.generate(prompts, num_tokens=NUM_COMPARED_TOKENS).ids
            except EngineProcessError as error:
                self._drop(engine.spec, error)
                engines.remove(engine)
            else:
                matching[engine] = num_matching(ids, reference or ids)
        return matching

    def _measure(self, engines: list[EngineProcess]) -> Mapping[EngineProcess, Samples]:
        """All rounds. Engines that fail are removed from `engines`."""
        samples: dict[EngineProcess, Samples] = {engine: {} for engine in engines}
        for number in range(self._plan.num_rounds):
            for slot in self._plan.slots:
                title = f"{slot}, round {number + 1} of {self._plan.num_rounds}"
                self._steps.begin(title, num_steps=len(engines))
                for engine in _in_turn(engines, number):
                    self._measure_one(engine, slot, number, samples[engine], engines)
                    self._steps.step()
        return samples

    def _measure_one(
        self, engine: EngineProcess, slot: str, number: int, samples: Samples, engines: list[EngineProcess]
    ) -> None:
        if engine.spec.slots is not None and slot not in engine.spec.slots:
            return
        try:
            for figure, values in SLOTS[slot](engine, self._plan.workload, number).items():
                samples.setdefault(figure, []).extend(values)
        except EngineProcessError as error:
            self._drop(engine.spec, error)
            engines.remove(engine)


def _in_turn(engines: Sequence[EngineProcess], number: int) -> list[EngineProcess]:
    """Another one first in every round."""
    first = number % len(engines)
    return [*engines[first:], *engines[:first]]


def _result(engine: EngineProcess, samples: Samples, matching: list[int] | None) -> EngineResult:
    return EngineResult(
        name=engine.spec.name,
        version=engine.spec.version,
        num_matching=matching,
        start_s=engine.start_s,
        peak_bytes=engine.peak_bytes(),
        figures={figure: spread(values) for figure, values in samples.items()},
    )
