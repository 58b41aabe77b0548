"""Log lines, as text for people or as JSON for machines. Knows nothing of what is logged.

A record is one line in either form, whatever text it holds: what a client sends must not look like lines of ours.
Loggers are the standard library's, named by module; `configure` is called once, by a command line.
"""

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal

LogFormat = Literal["text", "json"]

_STANDARD_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def configure(*, level: str = "INFO", log_format: LogFormat = "text") -> None:
    """Send every log line of the process to standard error in `log_format`. Replaces what was configured before."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if log_format == "json" else _TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


class _TextFormatter(logging.Formatter):
    """Only a traceback takes lines of its own."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s", datefmt="%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the standard library's name
        fields = "".join(f" {key}={_text_value(value)}" for key, value in _extra(record).items())
        return _on_one_line(super().formatMessage(record)) + fields


class _JsonFormatter(logging.Formatter):
    """`time` is RFC 3339 in UTC. A field of the record's never replaces one of these."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, tz=UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps({**line, **_extra(record), **line}, default=str, separators=(",", ":"))


def _extra(record: logging.LogRecord) -> Mapping[str, object]:
    """What the caller has added. Libraries such as Ray put attributes of their own on every record, underscored."""
    return {
        key: value for key, value in vars(record).items() if key not in _STANDARD_ATTRIBUTES and not key.startswith("_")
    }


def _text_value(value: object) -> str:
    """Quoted where it could be taken for more than one field."""
    text = str(value)
    return text if text and text.isprintable() and not set(text) & set(' "=') else json.dumps(text)


def _on_one_line(text: str) -> str:
    return text if text.isprintable() else "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)
