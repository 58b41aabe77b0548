"""The settings of the tokenizer processes, and what they report of themselves."""

from dataclasses import dataclass

from headrace.errors import SettingsError
from headrace.tokenization.processes.wire import MAX_TEXT_BYTES
from headrace.units import NumBytes, Seconds


@dataclass(frozen=True, kw_only=True)
class ProcessLaneSettings:
    """How many tokenizer processes there are, and what they may be given."""

    num_processes: int = 0
    """Tokenizer processes; each holds its own copy of every tokenizer. 0 switches them off."""

    max_text: NumBytes = 32 * 1024
    """Longer texts are never given to a process."""

    permits_per_process: int = 1
    """Texts that a process may have at once; it encodes them one after another."""

    max_queued_jobs: int = 256
    """Texts that may wait for a process; more are refused with 503."""

    queue_timeout_s: Seconds = 10.0
    """A text that found no process within this time is refused with 503."""

    job_timeout_s: Seconds = 5.0
    """A process that encodes one text for longer hangs, and is killed and replaced."""

    start_timeout_s: Seconds = 60.0
    """A process that needs longer to start, or to load a tokenizer, is killed and replaced."""

    def __post_init__(self) -> None:
        for name, least in (("num_processes", 0), ("max_text", 0), ("permits_per_process", 1), ("max_queued_jobs", 0)):
            if (value := getattr(self, name)) < least:
                raise SettingsError(f"{name} is {value}; it must be {least} or more", param=name)
        if self.max_text > MAX_TEXT_BYTES:
            raise SettingsError(f"max_text is {self.max_text}; it must be at most {MAX_TEXT_BYTES}", param="max_text")
        for name in ("queue_timeout_s", "job_timeout_s", "start_timeout_s"):
            if not (value := getattr(self, name)) > 0:
                raise SettingsError(f"{name} is {value}; it must be more than 0", param=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStatistics:
    """One process at one moment. `state` is `starting`, `ready` or `ended`."""

    pid: int | None
    state: str
    num_running: int
    num_answered: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLaneStatistics:
    """The lane at one moment, and what it has done since it was made."""

    name: str
    processes: tuple[ProcessStatistics, ...]
    num_queued: int
    num_queued_bytes: int
    num_running: int
    num_finished: int
    num_failed: int
    num_retried: int
    num_replaced: int
    num_poisonous: int
