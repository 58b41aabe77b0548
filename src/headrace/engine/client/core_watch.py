"""Judges by what the front end hears of a core whether it is well, stalled or hung. Pure: it is told how time passes.

Two deadlines, for two different things:
- silence: a core that says nothing at all, though an idle one speaks every second. In the end it is hung, and killed;
- no progress: work waits and no step has finished. That is bad health, and may pass: the core is left alone.
A step that runs too long shows as both, first as bad health, then as a hang.
"""

from headrace.engine.wire.messages import CoreStatistics

DEFAULT_STEP_TIMEOUT_S = 60.0


class CoreWatch:
    """One core's signs of life. Time counts only as `tick` says, so a watcher that was held up blames nobody."""

    def __init__(self, *, hang_timeout_s: float, step_timeout_s: float) -> None:
        self._hang_timeout_s = hang_timeout_s
        self._step_timeout_s = step_timeout_s
        self._num_steps = 0
        self.silent_s = 0.0
        """Since its last message."""
        self.stalled_s = 0.0
        """Since it last finished a step, or had none to do."""

    def __repr__(self) -> str:
        return f"CoreWatch(silent {self.silent_s:.1f} s, stalled {self.stalled_s:.1f} s)"

    @property
    def tick_s(self) -> float:
        """How often to tick, so that both deadlines are met well."""
        return min(1.0, self._hang_timeout_s / 4, self._step_timeout_s / 4)

    def tick(self, elapsed_s: float) -> None:
        self.silent_s += elapsed_s
        self.stalled_s += elapsed_s

    def hear(self, statistics: CoreStatistics | None = None) -> None:
        """It has sent a message, perhaps with its statistics."""
        self.silent_s = 0.0
        if statistics is not None and (statistics.num_steps != self._num_steps or not _has_steps_to_do(statistics)):
            self._num_steps = statistics.num_steps
            self.stalled_s = 0.0

    def is_hung(self, *, patience_s: float = 0.0) -> bool:
        """Silent for longer than any step may take; `patience_s` is how long the call that it works on may take."""
        return self.silent_s >= max(self._hang_timeout_s, patience_s)

    def is_stalled(self, *, patience_s: float = 0.0) -> bool:
        return self.stalled_s >= max(self._step_timeout_s, patience_s)


def _has_steps_to_do(statistics: CoreStatistics) -> bool:
    return statistics.num_running + statistics.num_waiting > statistics.num_waiting_deferred
