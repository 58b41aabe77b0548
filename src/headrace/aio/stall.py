"""Says when, for how long and by what an event loop was held.

A timer in the loop measures how late it comes. A thread beside the loop looks at the timer's last tick and, when that
is too old, notes what the loop's thread is executing. Costs a few microseconds for each interval. Code that is known to
hold the loop notes its time in `LoopSections`, and the monitor says how much of the lag was its doing.
"""

import asyncio
import logging
import math
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from prometheus_client import CollectorRegistry, Counter, Histogram

from headrace.errors import SettingsError
from headrace.units import Seconds

_LOG = logging.getLogger(__name__)

_LAG_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


@dataclass(frozen=True, kw_only=True)
class LoopStallSettings:
    """How closely a loop is watched."""

    interval_s: Seconds = 0.05
    """Time between two measurements of the loop's lag."""

    threshold_s: Seconds = 0.1
    """A loop held longer than this has stalled: what held it is logged."""

    def __post_init__(self) -> None:
        for name in ("interval_s", "threshold_s"):
            if not (value := getattr(self, name)) > 0:
                raise SettingsError(f"{name} is {value}; it must be more than 0", param=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionTime:
    """How long the code of one section held the loop, and how much of the loop's lag fell into that time."""

    name: str
    held_s: float
    lag_s: float


class LoopSections:
    """Named sections of code that run on one loop, and their time. Whoever runs them notes it; a monitor reads it.

    For use in the loop's thread only. Noting costs less than a microsecond. Sections inside each other count each.
    """

    __slots__ = ("_due_s", "_held_s", "_lag_s")

    def __init__(self) -> None:
        self._held_s: dict[str, float] = {}
        self._lag_s: dict[str, float] = {}
        self._due_s = math.inf

    def note(self, name: str, took_s: float) -> None:
        """Code of the section `name` held the loop for the last `took_s` seconds and has ended just now."""
        self._held_s[name] = self._held_s.get(name, 0.0) + took_s
        overdue_s = time.monotonic() - self._due_s
        if overdue_s > 0:
            self._lag_s[name] = self._lag_s.get(name, 0.0) + min(took_s, overdue_s)

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Note the time of the block, which must not await."""
        begun_s = time.monotonic()
        try:
            yield
        finally:
            self.note(name, time.monotonic() - begun_s)

    def expect(self, due_s: float) -> None:
        """A monitor's timer is due at `due_s` of the monotonic clock: what holds the loop after that is lag."""
        self._due_s = due_s

    def statistics(self) -> tuple[SectionTime, ...]:
        return tuple(
            SectionTime(name=name, held_s=held_s, lag_s=self._lag_s.get(name, 0.0))
            for name, held_s in self._held_s.items()
        )

    def __repr__(self) -> str:
        return f"LoopSections({', '.join(f'{name}={held_s:.3f}s' for name, held_s in self._held_s.items())})"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopStallStatistics:
    """What a monitor has seen since it started."""

    num_ticks: int
    num_stalls: int
    total_lag_s: float
    max_lag_s: float
    sections: tuple[SectionTime, ...]
    """Which code it was, as far as it is marked; the rest of the lag is others' doing."""
    last_stack: str | None
    """What the loop's thread was executing in the latest stall, innermost call last."""


class LoopStallMonitor:
    """Watches the loop that runs when it is entered or started. One use; an asynchronous context manager."""

    def __init__(
        self,
        settings: LoopStallSettings | None = None,
        *,
        registry: CollectorRegistry | None = None,
        sections: LoopSections | None = None,
    ) -> None:
        """Metrics named `headrace_loop_*` go to `registry` (None: its own). `sections` has the marked code of the loop;
        only one monitor can read them."""
        self._settings = settings or LoopStallSettings()
        registry = registry or CollectorRegistry()
        self._lag = Histogram(
            "headrace_loop_lag_seconds",
            "How late the event loop ran a timer.",
            buckets=_LAG_BUCKETS_S,
            registry=registry,
        )
        self._stalls = Counter(
            "headrace_loop_stalls", "Times the event loop was held beyond the threshold.", registry=registry
        )
        self._section_held = Counter(
            "headrace_loop_section_seconds",
            "Time that marked code held the event loop.",
            ("section",),
            registry=registry,
        )
        self._section_lag = Counter(
            "headrace_loop_section_lag_seconds",
            "How much of the event loop's lag fell into the time of marked code.",
            ("section",),
            registry=registry,
        )
        self.sections = sections or LoopSections()
        self._told: dict[str, SectionTime] = {}
        self._num_ticks = 0
        self._num_stalls = 0
        self._total_lag_s = 0.0
        self._max_lag_s = 0.0
        self._longest_lag_s = 0.0
        self._last_stack: str | None = None
        self._last_tick_s = 0.0
        self._loop_thread_id = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_stopped = threading.Event()
        self._watchdog: threading.Thread | None = None

    def start(self) -> None:
        """Begin to watch the running loop. Call it in the loop."""
        if self._watchdog is not None:
            raise RuntimeError(f"{self!r} was started before; a monitor is for one use")
        self._loop_thread_id = threading.get_ident()
        self._last_tick_s = time.monotonic()
        self._schedule(asyncio.get_running_loop())
        self._watchdog = threading.Thread(target=self._watch, name="headrace-loop-watchdog", daemon=True)
        self._watchdog.start()

    def stop(self) -> None:
        """End the watch. Idempotent; the thread ends at once and is not waited for."""
        self._is_stopped.set()
        self.sections.expect(math.inf)
        if self._timer is not None:
            self._timer.cancel()

    def statistics(self) -> LoopStallStatistics:
        return LoopStallStatistics(
            num_ticks=self._num_ticks,
            num_stalls=self._num_stalls,
            total_lag_s=self._total_lag_s,
            max_lag_s=self._max_lag_s,
            sections=self.sections.statistics(),
            last_stack=self._last_stack,
        )

    def take_longest_lag_s(self) -> float:
        """The longest lag since the last call, for displays that follow it."""
        longest_s, self._longest_lag_s = self._longest_lag_s, 0.0
        return longest_s

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        due_s = time.monotonic() + self._settings.interval_s
        self.sections.expect(due_s)
        self._timer = loop.call_later(self._settings.interval_s, self._tick, loop, due_s)

    def _tick(self, loop: asyncio.AbstractEventLoop, due_s: float) -> None:
        self._last_tick_s = time.monotonic()
        lag_s = max(0.0, self._last_tick_s - due_s)
        self._num_ticks += 1
        self._total_lag_s += lag_s
        self._max_lag_s = max(self._max_lag_s, lag_s)
        self._longest_lag_s = max(self._longest_lag_s, lag_s)
        self._lag.observe(lag_s)
        self._tell_sections()
        if lag_s > self._settings.threshold_s:
            self._num_stalls += 1
            self._stalls.inc()
            _LOG.warning("the event loop was held for %.0f ms", lag_s * 1000)
        self._schedule(loop)

    def _tell_sections(self) -> None:
        """Bring the counters up to date: once for each tick, since a counter costs more than what it counts."""
        for now in self.sections.statistics():
            told = self._told.get(now.name)
            self._section_held.labels(now.name).inc(now.held_s - (told.held_s if told else 0.0))
            self._section_lag.labels(now.name).inc(now.lag_s - (told.lag_s if told else 0.0))
            self._told[now.name] = now

    def _watch(self) -> None:
        """The watchdog thread: once for each stall, note the stack of the loop's thread while it is being held."""
        limit_s = self._settings.interval_s + self._settings.threshold_s
        noted_tick_s: float | None = None
        while not self._is_stopped.wait(self._settings.threshold_s / 2):
            tick_s = self._last_tick_s
            if tick_s != noted_tick_s and time.monotonic() - tick_s > limit_s:
                noted_tick_s = tick_s
                self._note_stack()

    def _note_stack(self) -> None:
        frame = sys._current_frames().get(self._loop_thread_id)
        if frame is None:
            return
        self._last_stack = "".join(traceback.format_stack(frame))
        _LOG.warning("the event loop is being held by:\n%s", self._last_stack)

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"LoopStallMonitor(num_stalls={self._num_stalls}, max_lag_ms={self._max_lag_s * 1000:.1f})"
