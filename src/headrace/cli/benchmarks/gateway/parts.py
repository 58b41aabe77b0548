"""How each part of a round is measured of one gateway that is running."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from headrace.cli.benchmarks.gateway.contenders import Contender
from headrace.cli.benchmarks.gateway.figures import Samples
from headrace.cli.benchmarks.gateway.job import Job, Outcome
from headrace.cli.benchmarks.gateway.process import PinnedProcess, run_job
from headrace.cli.benchmarks.gateway.workload import Shape
from headrace.errors import HeadraceError

_HISTORY_BYTES = 196_000
"""About 60,000 tokens of the demo model's tokenizer."""
_EVENTS_PER_S = 50
_STREAMS_RAMP_S = 2.0


class WrongAnswerError(HeadraceError):
    """A gateway gave an answer that is not what it should be: the one defect that no speed makes up for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is done."""

    measured_s: float = 4.0
    streams_s: float = 8.0
    num_streams: int = 1000
    num_chats: int = 32
    num_prompts: int = 1_000_000


QUICK = Scale(measured_s=1.0, streams_s=2.0, num_streams=200, num_chats=8, num_prompts=2000)


def shapes(scale: Scale) -> dict[str, Shape]:
    """The works that the parts send, by name."""
    return {
        "small": Shape(num_chats=64, body_bytes=2048),
        "large": Shape(num_chats=16, body_bytes=60_000),
        "large known": Shape(num_chats=16, body_bytes=56_000, num_turns=8),
        "chats": Shape(num_chats=scale.num_chats, body_bytes=_HISTORY_BYTES, num_turns=8),
        "streams": Shape(num_chats=64, body_bytes=600, num_events=_num_events(scale)),
        "memory": Shape(num_chats=64, body_bytes=13_500),
    }


def _num_events(scale: Scale) -> int:
    """Of each stream: none ends before the measurement does."""
    return int(_EVENTS_PER_S * (scale.streams_s + _STREAMS_RAMP_S + 2.0))


@dataclass(slots=True, kw_only=True)
class Measured:
    """One gateway while it is measured. Chats are numbered on, so that no round repeats a prompt of another."""

    contender: Contender
    process: PinnedProcess
    direct_port: int
    works: dict[str, Path]
    scale: Scale
    load_core: int
    rates: dict[str, float] = field(default_factory=dict)
    next_chats: dict[str, int] = field(default_factory=dict)

    def job(self, work: str, *, like: Job | None = None, is_direct: bool = False) -> Outcome:
        """Have a job done, with what `like` says. Raises WrongAnswerError."""
        job = msgspec.structs.replace(
            like or self.closed(),
            port=self.direct_port if is_direct else self.contender.port,
            work=str(self.works[work]),
            first_chat=self.next_chats.get(work, 0),
            pids=self.process.pids,
            is_exact=self.contender.is_exact or is_direct,
            mark=self.contender.mark,
        )
        outcome = run_job(job, core=self.load_core)
        self.next_chats[work] = outcome.num_chats
        error = outcome.error or ("it answered nothing" if not outcome.num_done else None)
        if error is not None:
            who = "the fake endpoint" if is_direct else self.contender.name
            raise WrongAnswerError(f"{who}: {error[:600]}")
        return outcome

    def closed(self, *, num_connections: int = 32, measured_s: float | None = None, warm_up_s: float = 1.0) -> Job:
        """Each connection sends its next request when it has its answer."""
        return Job(
            kind="closed",
            num_connections=num_connections,
            measured_s=measured_s or self.scale.measured_s,
            warm_up_s=warm_up_s,
        )


def small(one: Measured) -> Samples:
    done = one.job("small")
    assert done.times is not None
    one.rates["small"] = _rate(done)
    return {"rate": _rate(done), "cpu": _cpu_us(done), "p50": done.times.p50, "p99": done.times.p99}


def large(one: Measured) -> Samples:
    new = one.job("large")
    known = one.job("large known", like=one.closed(num_connections=16))
    return {"rate": _rate(new), "rate_known": _rate(known), "cpu": _cpu_us(new), "cpu_known": _cpu_us(known)}


def latency(one: Measured) -> Samples:
    """At half the rate that it did in `small`, beside the same rate without a gateway."""
    rate = one.rates.get("small") or _rate(one.job("small", like=one.closed(measured_s=1.0)))
    half = Job(kind="open", rate=rate / 2, num_connections=64, measured_s=one.scale.measured_s)
    there = one.job("small", like=half)
    direct = one.job("small", like=half, is_direct=True)
    assert there.times is not None
    assert direct.times is not None
    return {
        "rate": _rate(there),
        "added_p50": there.times.p50 - direct.times.p50,
        "added_p99": there.times.p99 - direct.times.p99,
    }


def chats(one: Measured) -> Samples:
    busy = one.job("chats", like=one.closed(num_connections=8))
    alone = one.job("chats", like=one.closed(num_connections=1))
    direct = one.job("chats", like=one.closed(num_connections=1), is_direct=True)
    assert busy.times is not None
    assert alone.later_times is not None
    assert direct.later_times is not None
    return {
        "rate": _rate(busy),
        "added_p50": alone.later_times.p50 - direct.later_times.p50,
        "p50": busy.times.p50,
    }


def streams(one: Measured) -> Samples:
    scale = one.scale
    many = Job(
        kind="streams",
        num_connections=scale.num_streams,
        measured_s=scale.streams_s,
        warm_up_s=_STREAMS_RAMP_S,
        num_events=_num_events(scale),
    )
    there = one.job("streams", like=many)
    direct = one.job("streams", like=many, is_direct=True)
    assert there.times is not None
    assert direct.times is not None
    assert there.later_times is not None
    assert direct.later_times is not None
    return {
        "cores": there.cpu_s / there.measured_s,
        "added_p50": there.times.p50 - direct.times.p50,
        "added_gap_p99": there.later_times.p99 - direct.later_times.p99,
    }


INTERLEAVED: dict[str, Callable[[Measured], Samples]] = {
    "small": small,
    "large": large,
    "latency": latency,
    "chats": chats,
    "streams": streams,
}
"""Parts that are measured of all gateways in turns."""


def _rate(done: Outcome) -> float:
    return done.num_done / done.measured_s


def _cpu_us(done: Outcome) -> float:
    return done.cpu_s / max(1, done.num_done) * 1e6
