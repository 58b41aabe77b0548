"""One log line for each answer. Knows of a request what stands in its first line, and nothing of its body."""

import logging
import time

from starlette.types import Scope

_LOG = logging.getLogger(__name__)

_QUIET_PATHS = frozenset({"/health", "/ping", "/load", "/metrics"})
"""Asked every second or so, for ever: their lines would hide the others."""
_MAX_PATH_CHARACTERS = 256


def note_answer(scope: Scope, *, answer_id: str) -> None:
    """The request's line is to have the id of its answer, which begins the engine's ids of it."""
    scope.setdefault("state", {})["answer_id"] = answer_id


class AccessLine:
    """Begun with the request and written when it has ended. Times are those of the monotonic clock."""

    def __init__(self, scope: Scope, *, request_id: str) -> None:
        self._scope = scope
        self._request_id = request_id
        self._begun_at_s = time.monotonic()

    def write(self, *, status: int | None) -> None:
        """No `status` is a client that left before there was one."""
        scope = self._scope
        level = logging.DEBUG if scope["path"] in _QUIET_PATHS else logging.INFO
        if not _LOG.isEnabledFor(level):
            return
        fields: dict[str, object] = {
            "request_id": self._request_id,
            "status": status,
            "duration_ms": round((time.monotonic() - self._begun_at_s) * 1000, 1),
            "client": _client(scope),
        }
        if (answer_id := scope.get("state", {}).get("answer_id")) is not None:
            fields["answer_id"] = answer_id
        # A line's sense is its fields; the words stay few.
        _LOG.log(level, "%s %s", scope["method"], _path(scope), extra=fields)


def _path(scope: Scope) -> str:
    """As the client wrote it, still %-encoded: a line break in it would forge log lines. Queries may hold secrets."""
    raw: bytes = scope.get("raw_path") or b""
    text = raw.decode("ascii", "backslashreplace")
    return text if len(text) <= _MAX_PATH_CHARACTERS else text[:_MAX_PATH_CHARACTERS] + "..."


def _client(scope: Scope) -> str | None:
    client = scope.get("client")
    return f"{client[0]}:{client[1]}" if client else None
