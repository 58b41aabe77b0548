"""One run: everything started, measured in turns, and ended."""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from headrace._version import __version__
from headrace.cli.benchmarks import machine
from headrace.cli.benchmarks.engine_measures import spread
from headrace.cli.benchmarks.gateway import contenders as who
from headrace.cli.benchmarks.gateway.contenders import OURS, PEERS, Contender, Place
from headrace.cli.benchmarks.gateway.figures import BARS, PARTS, Row, Samples, check
from headrace.cli.benchmarks.gateway.parts import INTERLEAVED, Measured, Scale, WrongAnswerError, shapes
from headrace.cli.benchmarks.gateway.process import BenchProcessError, PinnedProcess, free_ports, start_upstream
from headrace.cli.benchmarks.gateway.report import GatewayReport
from headrace.cli.benchmarks.gateway.workload import Workload, write
from headrace.cli.benchmarks.progress import Steps

_NUM_UPSTREAMS = 2
_NUM_STARTS = 5
_NUM_LOOKS = 10
"""At memory over time."""
_MEGABYTE = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is asked for."""

    parts: Sequence[str]
    peers: Sequence[str]
    tokenizer: Path
    peers_root: Path
    num_rounds: int
    scale: Scale
    cores: tuple[int, int]
    """Of the gateway; of the load and the endpoints."""
    is_quick: bool


class GatewayBench:
    """Runs a plan (blocking). Files go to `folder`."""

    def __init__(self, plan: Plan, *, steps: Steps, folder: Path) -> None:
        self._plan = plan
        self._steps = steps
        self._folder = folder
        self._keys_file = folder / "keys.yaml"
        self._samples: dict[tuple[str, str], list[Samples]] = defaultdict(list)
        self._errors: dict[tuple[str, str], str] = {}
        self._versions: dict[str, str] = {}
        self._notes: list[str] = []

    def run(self) -> GatewayReport:
        """Raises BenchProcessError where ours does not start; a peer that does not is left out."""
        plan, found, begun_s = self._plan, machine.describe(), time.monotonic()
        works = self._make_works(who.new_keys_file(self._keys_file))
        ports = free_ports(_NUM_UPSTREAMS)
        with start_upstream(ports, core=plan.cores[1], log=self._folder / "endpoints.log"):
            self._measure_in_turns([part for part in plan.parts if part in INTERLEAVED], ports, works)
            self._measure_alone(ports, works)
        rows = self._rows()
        return GatewayReport(
            machine=found,
            tokenizer=str(plan.tokenizer),
            is_quick=plan.is_quick,
            num_rounds=plan.num_rounds,
            gateway_core=plan.cores[0],
            load_core=plan.cores[1],
            versions=self._versions,
            rows=rows,
            bars=check(BARS, rows),
            notes=self._notes,
            elapsed_s=time.monotonic() - begun_s,
        )

    def _make_works(self, api_keys: Sequence[str]) -> dict[str, Path]:
        found = shapes(self._plan.scale)
        names = [name for name in found if any(name.startswith(part) for part in {*self._plan.parts, *self._also()})]
        self._steps.begin("making requests", num_steps=len(names))
        workload = Workload(self._plan.tokenizer, api_keys=api_keys)
        paths = {}
        for name in names:
            paths[name] = self._folder / f"{name}.work"
            write(workload.make(name, found[name]), paths[name])
            self._steps.step()
        return paths

    def _also(self) -> set[str]:
        return {"small"} if "latency" in self._plan.parts else set()

    # in turns

    def _measure_in_turns(self, parts: Sequence[str], ports: Sequence[int], works: dict[str, Path]) -> None:
        if not parts:
            return
        with ExitStack() as stack:
            measured = self._start_all(stack, ports, works)
            self._steps.begin("measuring", num_steps=self._plan.num_rounds * len(parts) * len(measured))
            for _ in range(self._plan.num_rounds):
                for part in parts:
                    for one in measured:
                        self._take_turn(part, one)
                        self._steps.step()

    def _start_all(self, stack: ExitStack, ports: Sequence[int], works: dict[str, Path]) -> list[Measured]:
        contenders = self._contenders(ports)
        self._steps.begin("starting", num_steps=len(contenders))
        measured = []
        for contender in contenders:
            try:
                process = self._start(contender, stack)
            except BenchProcessError as error:
                if contender.name == OURS:
                    raise
                self._notes.append(error.message)
                continue
            finally:
                self._steps.step()
            one = Measured(
                contender=contender,
                process=process,
                direct_port=ports[0],
                works=works,
                scale=self._plan.scale,
                load_core=self._plan.cores[1],
            )
            process.pause()
            measured.append(one)
        return measured

    def _start(self, contender: Contender, stack: ExitStack) -> PinnedProcess:
        process = stack.enter_context(self._process(contender))
        process.wait_until_answers(contender.port, path="/health", timeout_s=contender.ready_timeout_s)
        if contender.companion:
            stack.enter_context(self._companion(contender))
        _wait(contender.settle_s)
        return process

    def _companion(self, contender: Contender) -> PinnedProcess:
        return PinnedProcess(
            f"what belongs to {contender.name}",
            contender.companion,
            core=self._plan.cores[1],
            log=self._folder / f"{contender.name} companion.log",
            environment=contender.environment,
        )

    def _process(self, contender: Contender) -> PinnedProcess:
        return PinnedProcess(
            contender.name,
            contender.command,
            core=self._plan.cores[0],
            log=self._folder / f"{contender.name}.log",
            environment=contender.environment,
        )

    def _take_turn(self, part: str, one: Measured) -> None:
        name = one.contender.name
        has_part = one.contender.parts is None or part in one.contender.parts
        if (part, name) in self._errors or not has_part:
            return
        one.process.resume()
        try:
            self._samples[part, name].append(INTERLEAVED[part](one))
        except WrongAnswerError as error:
            self._errors[part, name] = error.message
        finally:
            one.process.pause()

    # ours alone

    def _measure_alone(self, ports: Sequence[int], works: dict[str, Path]) -> None:
        alone: dict[str, Callable[[Sequence[int], dict[str, Path]], None]] = {
            "start": self._measure_starts,
            "memory": self._measure_memory,
        }
        for part, measure in alone.items():
            if part in self._plan.parts:
                measure(ports, works)

    def _measure_starts(self, ports: Sequence[int], _: dict[str, Path]) -> None:
        self._steps.begin("starting again and again", num_steps=_NUM_STARTS)
        for _number in range(_NUM_STARTS):
            contender = self._ours(ports)
            with self._process(contender) as process:
                ready_s = process.wait_until_answers(contender.port, path="/health", timeout_s=30.0)
                _wait(contender.settle_s)
                self._samples["start", OURS].append({"ready": ready_s, "idle": process.resident_bytes() / _MEGABYTE})
            self._steps.step()

    def _measure_memory(self, ports: Sequence[int], works: dict[str, Path]) -> None:
        """Distinct prompts until there were enough; memory is looked at in between, and the most of it counts."""
        plan, contender = self._plan, self._ours(ports)
        num_wanted = plan.scale.num_prompts
        with ExitStack() as stack:
            one = Measured(
                contender=contender,
                process=self._start(contender, stack),
                direct_port=ports[0],
                works=works,
                scale=replace(plan.scale, measured_s=5.0 if num_wanted > 50_000 else 1.0),
                load_core=plan.cores[1],
            )
            self._steps.begin("distinct prompts", num_steps=100)
            num_done, num_shown, most = 0, 0, one.process.resident_bytes()
            over_time = [(0, most)]
            while num_done < num_wanted:
                one.job("memory", like=one.closed(warm_up_s=0.0))
                num_done = one.next_chats["memory"]
                now = one.process.resident_bytes()
                most = max(most, now)
                if num_done >= len(over_time) * num_wanted // _NUM_LOOKS:
                    over_time.append((num_done, now))
                while num_shown < min(100, 100 * num_done // num_wanted):
                    num_shown += 1
                    self._steps.step()
            self._samples["memory", OURS].append({"resident": most / _MEGABYTE, "prompts": num_done})
            looks = ", ".join(f"{now / _MEGABYTE:.0f} MB at {number:,}" for number, now in over_time)
            self._notes.append(f"resident by the number of distinct prompts: {looks}")

    # who and what

    def _contenders(self, ports: Sequence[int]) -> list[Contender]:
        found = [self._ours(ports)]
        for name in self._plan.peers:
            peer = PEERS[name](self._place(ports))
            if peer is None:
                self._notes.append(f"{name} is not installed: make peers")
            else:
                found.append(peer)
                self._versions[peer.name] = peer.version
        return found

    def _ours(self, ports: Sequence[int]) -> Contender:
        self._versions[OURS] = __version__
        return who.ours(self._place(ports), keys_file=self._keys_file, version=__version__)

    def _place(self, ports: Sequence[int]) -> Place:
        port, spare_port = free_ports(2)
        return Place(
            port=port,
            spare_port=spare_port,
            upstream_ports=ports,
            folder=self._folder,
            tokenizer=self._plan.tokenizer,
            peers_root=self._plan.peers_root,
        )

    def _rows(self) -> list[Row]:
        return [
            Row(
                part=part,
                contender=name,
                figures={
                    figure: spread([sample[figure] for sample in self._samples[part, name]])
                    for figure in PARTS[part]
                    if self._samples[part, name]
                },
                error=self._errors.get((part, name)),
            )
            for part in PARTS
            for name in self._versions
            if (part, name) in self._samples or (part, name) in self._errors
        ]


def _wait(duration_s: float) -> None:
    time.sleep(duration_s)
