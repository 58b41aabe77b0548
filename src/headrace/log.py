"""Log lines, as text for people or as JSON for machines. Knows nothing of what is logged.

Loggers are the standard library's, named by module; `configure` is called once, by a command line.
"""

import logging
import sys
from collections.abc import Mapping
from typing import Literal

import msgspec

LogFormat = Literal["text", "json"]

_STANDARD_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


def configure(*, level: str = "INFO", log_format: LogFormat = "text") -> None:
    """Send every log line of the process to standard error in `log_format`. Replaces what was configured before."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if log_format == "json" else _TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


class _TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s", datefmt="%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{key}={value}" for key, value in _extra(record).items())
        line = super().format(record)
        return f"{line} {fields}" if fields else line


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": record.created,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_extra(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


def _extra(record: logging.LogRecord) -> Mapping[str, object]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD_ATTRIBUTES}
