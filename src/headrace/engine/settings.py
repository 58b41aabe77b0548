"""Settings of the engine's front end; those of the engine itself are in `headrace.engine.config`."""

from dataclasses import dataclass, fields

from headrace.engine.client.core_watch import DEFAULT_STEP_TIMEOUT_S
from headrace.engine.core.loop import HEARTBEAT_S
from headrace.errors import SettingsError
from headrace.units import Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontEndSettings:
    """How the front end starts, watches and ends its core. Raises SettingsError, naming the field."""

    in_process: bool = False
    """Run the core in a thread instead of a process of its own: for debugging, not for speed."""
    max_num_requests: int = 4096
    """Most requests that may be open at once; one more is refused as overload."""
    start_timeout_s: Seconds = 600.0
    """The core must have loaded its model by then."""
    hang_timeout_s: Seconds = 120.0
    """A core that shows no sign of life for so long is hung, and is killed. No step may take longer; an idle core shows
    one every second."""
    step_timeout_s: Seconds = DEFAULT_STEP_TIMEOUT_S
    """While work waits and no step has finished for so long, `check_health` says that the engine is stalled."""
    shutdown_timeout_s: Seconds = 10.0
    """A core that has not ended this long after it was told to is killed."""

    stats_interval_s: Seconds = 10.0
    """How often the stat loggers write what they counted."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "in_process" and not value > 0:
                raise SettingsError(f"{field.name} is {value}; it must be above 0", param=field.name)
        for name in ("hang_timeout_s", "step_timeout_s"):
            if (timeout_s := getattr(self, name)) < 2 * HEARTBEAT_S:
                raise SettingsError(f"{name} is {timeout_s}; it must be at least {2 * HEARTBEAT_S:g}", param=name)
