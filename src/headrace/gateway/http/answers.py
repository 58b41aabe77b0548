"""Answers that the gateway gives itself: JSON and errors."""

import math

from headrace.errors import HeadraceError
from headrace.gateway.error_form import error_answer
from headrace.gateway.http.head import http_date
from headrace.gateway.http.head_facts import Headers
from headrace.gateway.http.message import MethodNotAllowedError
from headrace.gateway.http.response_writer import ResponseWriter


def answer_json(client: ResponseWriter, body: bytes, *, status: int = 200, headers: Headers | None = None) -> None:
    """Answer with a JSON body that is already encoded."""
    own = [(b"content-type", b"application/json"), (b"date", http_date())]
    client.answer(status=status, headers=own + (headers or []), body=body)


def answer_error(
    client: ResponseWriter, error: HeadraceError, *, path: str = "", headers: Headers | None = None
) -> None:
    """Answer with `error`, its status and, where it says so, when to try again. The form is that of `path`."""
    extra = list(headers or [])
    if error.retry_after_s is not None:
        extra.append((b"retry-after", b"%d" % max(1, math.ceil(error.retry_after_s))))
    if isinstance(error, MethodNotAllowedError):
        extra.append((b"allow", error.allow.encode("ascii")))
    answer_json(client, error_answer(error, path=path), status=error.status_hint, headers=extra)
