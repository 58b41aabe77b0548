"""Who is told what the engine does: the protocol of a stat logger, the one that writes log lines, and the list of them.

The Prometheus one is in `headrace.engine.front.metrics`.
"""

import logging
import time
from collections.abc import Callable
from typing import Protocol

from headrace.engine.front.step_stats import StepStats
from headrace.engine.statistics import EngineStatistics
from headrace.errors import InvalidRequestError

_LOG = logging.getLogger("headrace.engine.stats")


class StatLogger(Protocol):
    """Is told of everything that happens, on the event loop: it must be quick and must not wait."""

    def record(self, step: StepStats, engine: EngineStatistics) -> None:
        """What has happened since the call before, and the engine as it is now."""
        ...

    def log(self) -> None:
        """Report what was recorded; called now and then, and by `AsyncLLMEngine.do_log_stats`."""
        ...


class StatLoggers:
    """The loggers of one engine, by name. One that fails is reported, and the engine goes on."""

    def __init__(self) -> None:
        self._loggers: dict[str, StatLogger] = {}

    def __len__(self) -> int:
        return len(self._loggers)

    def __repr__(self) -> str:
        return f"<StatLoggers {', '.join(self._loggers) or 'none'}>"

    def add(self, name: str, logger: StatLogger) -> None:
        """Raises InvalidRequestError when the name is taken, and for what is no logger."""
        if not all(callable(getattr(logger, method, None)) for method in ("record", "log")):
            message = f"logger is {logger!r:.80}; it needs the methods record(step, engine) and log()"
            raise InvalidRequestError(message, param="logger")
        if name in self._loggers:
            raise InvalidRequestError(f"there is a stat logger {name!r} already; remove it first", param="name")
        self._loggers[name] = logger

    def remove(self, name: str) -> None:
        """Raises InvalidRequestError when there is none of that name."""
        if self._loggers.pop(name, None) is None:
            known = ", ".join(self._loggers) or "none"
            raise InvalidRequestError(f"there is no stat logger {name!r}; there is {known}", param="name")

    def record(self, step: StepStats, engine: EngineStatistics) -> None:
        for name, logger in list(self._loggers.items()):
            try:
                logger.record(step, engine)
            except Exception:  # noqa: BLE001 - somebody else's code: its failure is not the engine's
                _LOG.exception("the stat logger %r failed on a record", name)

    def log(self) -> None:
        for name, logger in list(self._loggers.items()):
            try:
                logger.log()
            except Exception:  # noqa: BLE001 - as above
                _LOG.exception("the stat logger %r failed to log", name)


class LoggingStatLogger:
    """A line at INFO with the throughput since the line before; nothing while nothing happens."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._engine: EngineStatistics | None = None
        self._since = clock()
        self._num_prompt_tokens = 0
        self._num_generation_tokens = 0
        self._queries_before = 0
        self._hits_before = 0

    def __repr__(self) -> str:
        return f"<LoggingStatLogger {self._num_generation_tokens} tokens since the last line>"

    def record(self, step: StepStats, engine: EngineStatistics) -> None:
        self._num_prompt_tokens += step.num_prompt_tokens
        self._num_generation_tokens += step.num_generation_tokens
        self._engine = engine

    def log(self) -> None:
        now, engine = self._clock(), self._engine
        seconds = now - self._since
        if engine is not None and seconds > 0 and self._is_worth_a_line(engine):
            _LOG.info("%s", self._line(engine, seconds))
        self._since = now
        self._num_prompt_tokens = self._num_generation_tokens = 0
        if engine is not None:
            self._queries_before, self._hits_before = engine.prefix_cache_queries, engine.prefix_cache_hits

    def _is_worth_a_line(self, engine: EngineStatistics) -> bool:
        return bool(self._num_prompt_tokens or self._num_generation_tokens or engine.num_unfinished)

    def _line(self, engine: EngineStatistics, seconds: float) -> str:
        queries = engine.prefix_cache_queries - self._queries_before
        hits = engine.prefix_cache_hits - self._hits_before
        return (
            f"Avg prompt throughput: {self._num_prompt_tokens / seconds:.1f} tokens/s, "
            f"Avg generation throughput: {self._num_generation_tokens / seconds:.1f} tokens/s, "
            f"Running: {engine.num_running} reqs, Waiting: {engine.num_waiting} reqs, "
            f"KV cache usage: {engine.kv_cache_usage:.1%}, "
            f"Prefix cache hit rate: {hits / queries if queries else 0.0:.1%}"
        )
