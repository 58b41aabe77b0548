"""What an operator asks of a fake engine: it remembers what was asked, and answers as the real one does."""

from collections.abc import Sequence

from headrace.engine.core.sleep import SleepState, check_level, check_tags
from headrace.errors import SettingsError


class FakeOperations:
    """Awake at first, with nothing cached. A test sets `can_profile`, and reads the rest."""

    def __init__(self) -> None:
        self.can_profile = True
        self.is_profiling = False
        self.num_cache_resets = 0
        self._sleep = SleepState()

    def __repr__(self) -> str:
        return f"FakeOperations({self._sleep!r}, is_profiling={self.is_profiling})"

    @property
    def is_asleep(self) -> bool:
        return self._sleep.is_asleep

    def sleep(self, level: int) -> None:
        check_level(level)
        self._sleep.fall_asleep(level)

    def wake_up(self, tags: Sequence[str] | None) -> None:
        check_tags(tags)
        self._sleep.bring_back(self._sleep.to_bring_back(tags))

    def start_profile(self) -> None:
        if not self.can_profile:
            raise SettingsError("profiler_dir is not set", param="profiler_dir")
        self.is_profiling = True

    def stop_profile(self) -> None:
        self.is_profiling = False
