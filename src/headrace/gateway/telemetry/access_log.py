"""One log line for each request: who asked for what, where it went, what it took. Never a prompt, never a key's secret.

The line's sense is in its fields; `--log-format json` makes an object of them.
"""

import logging
from collections.abc import Callable

from headrace.gateway.choose import Chosen
from headrace.gateway.http.head_facts import Headers
from headrace.gateway.http.message import Request
from headrace.gateway.identify import Call
from headrace.gateway.prompt.tokens import PromptCount
from headrace.gateway.proxy import Answer

_LOG = logging.getLogger(__name__)

QUIET_PATHS = frozenset({"/health", "/v1/models"})
"""Asked every second or so, for ever: their lines would hide the others."""
_MAX_PATH_CHARACTERS = 256


class AccessLine:
    """The trail that becomes a line when the request has ended. `now` is the clock of Request.received_s."""

    __slots__ = ("_fields", "_first_byte_s", "_now", "_num_attempts", "_request", "_request_id")

    def __init__(self, request: Request, *, request_id: str, now: Callable[[], float]) -> None:
        self._request = request
        self._request_id = request_id
        self._now = now
        self._num_attempts = 0
        self._first_byte_s: float | None = None
        self._fields: dict[str, object] = {}

    def identified(self, call: Call, *, key_name: str) -> None:
        self._fields["key"] = key_name
        self._fields["model"] = call.model
        self._fields["stream"] = bool(call.fields.stream)

    def counted(self, prompt: PromptCount) -> None:
        self._fields["prompt_tokens"] = prompt.total
        self._fields["count"] = prompt.why

    def admitted(self, *, waited_s: float) -> None:
        self._fields["queued_ms"] = _ms(waited_s)

    def chosen(self, chosen: Chosen) -> None:
        self._num_attempts += 1
        self._fields["overhead_ms"] = _ms(self._now() - self._request.received_s)
        self._fields["endpoint"] = chosen.endpoint.name
        self._fields["reason"] = chosen.reason
        self._fields["cached_tokens_predicted"] = chosen.routed.num_cached_tokens

    def forwarded(self, headers: Headers) -> Headers:
        return headers

    def answered(self, answer: Answer) -> None:
        self._first_byte_s = answer.first_byte_s
        if answer.usage is not None:
            self._fields["prompt_tokens"] = answer.usage.prompt_tokens
            self._fields["cached_tokens"] = answer.usage.cached_tokens
            self._fields["completion_tokens"] = answer.usage.completion_tokens
        if answer.error is not None:
            self._fields["error"] = answer.error.code

    def ended(self, status: int | None) -> None:
        request = self._request
        level = logging.DEBUG if request.path in QUIET_PATHS else logging.INFO
        if not _LOG.isEnabledFor(level):
            return
        fields: dict[str, object] = {
            "request_id": self._request_id,
            "status": status,
            "duration_ms": _ms(self._now() - request.received_s),
            "client": request.peer,
            **self._fields,
        }
        if self._num_attempts > 1:
            fields["attempts"] = self._num_attempts
        if self._first_byte_s is not None:
            fields["first_byte_ms"] = _ms(self._first_byte_s)
        _LOG.log(level, "%s %s", request.method, _path(request), extra=fields)


def _path(request: Request) -> str:
    """As the client wrote it, without its query, which may hold secrets."""
    path = request.path
    text = path if path.isascii() and path.isprintable() else ascii(path)[1:-1]
    return text if len(text) <= _MAX_PATH_CHARACTERS else text[:_MAX_PATH_CHARACTERS] + "..."


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)
