"""How deep a core sleeps and what it lacks for going on. Pure; somebody else drops and brings back the memory."""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.errors import InvalidRequestError

SLEEP_TAGS = ("weights", "kv_cache")
"""What sleep gives up, and what `wake_up` can bring back one by one."""

_LEVELS = (1, 2)


@dataclass(slots=True)
class SleepState:
    """Awake at first."""

    level: int = 0
    """1: the weights can be had again unchanged; 2: they are gone; 0: awake."""
    missing: tuple[str, ...] = ()

    @property
    def is_asleep(self) -> bool:
        return bool(self.missing)

    def fall_asleep(self, level: int) -> None:
        """Deeper than it is, or as deep; everything is missing then."""
        self.level = max(level, self.level)
        self.missing = SLEEP_TAGS

    def to_bring_back(self, tags: Sequence[str] | None) -> tuple[str, ...]:
        """Which of the tags, all by default, are missing."""
        wanted = SLEEP_TAGS if tags is None else tags
        return tuple(tag for tag in self.missing if tag in wanted)

    def bring_back(self, tags: Sequence[str]) -> None:
        self.missing = tuple(tag for tag in self.missing if tag not in tags)
        self.level = self.level if self.missing else 0


def check_level(level: int) -> None:
    """Raises InvalidRequestError for a level that there is not."""
    if level not in _LEVELS:
        raise InvalidRequestError(f"level is {level!r}; the engine sleeps at level 1 or 2", param="level")


def check_tags(tags: Sequence[str] | None) -> None:
    """Raises InvalidRequestError for a tag that there is not."""
    for tag in tags or ():
        if tag not in SLEEP_TAGS:
            raise InvalidRequestError(f"tags names {tag!r}; give any of {', '.join(SLEEP_TAGS)}", param="tags")
