"""What is remembered of one request on its way, for those who write it down: the access log and traces.

The page that serves requests tells a trail each step. Where nobody writes anything down the trail is `UNOBSERVED`, and
a request pays for a few empty calls.
"""

import time
from collections.abc import Callable
from typing import Protocol

from headrace.gateway.choose import Chosen
from headrace.gateway.http.head_facts import Headers
from headrace.gateway.http.message import Request
from headrace.gateway.identify import Call
from headrace.gateway.prompt.tokens import PromptCount
from headrace.gateway.proxy import Answer
from headrace.gateway.telemetry.access_log import QUIET_PATHS, AccessLine


class Trail(Protocol):
    """The steps of one request, told in their order. `ended` is told once, whatever happened."""

    def identified(self, call: Call, *, key_name: str) -> None: ...

    def counted(self, prompt: PromptCount) -> None: ...

    def admitted(self, *, waited_s: float) -> None: ...

    def chosen(self, chosen: Chosen) -> None: ...

    def forwarded(self, headers: Headers) -> Headers:
        """The client's header fields as the endpoint chosen last is to get them."""
        ...

    def answered(self, answer: Answer) -> None:
        """The attempt at that endpoint is over."""
        ...

    def ended(self, status: int | None) -> None:
        """The request is over; None where its client left before it had an answer."""
        ...


class _Unobserved:
    """Forgets everything."""

    def identified(self, call: Call, *, key_name: str) -> None: ...

    def counted(self, prompt: PromptCount) -> None: ...

    def admitted(self, *, waited_s: float) -> None: ...

    def chosen(self, chosen: Chosen) -> None: ...

    def forwarded(self, headers: Headers) -> Headers:
        return headers

    def answered(self, answer: Answer) -> None: ...

    def ended(self, status: int | None) -> None: ...


UNOBSERVED: Trail = _Unobserved()


class Tracer(Protocol):
    """Makes the trail of a request that becomes a trace."""

    def begin(self, request: Request, *, request_id: str) -> Trail: ...


class Observation:
    """Who writes requests down. `begin` gives each request its trail."""

    def __init__(
        self, *, logs: bool = False, tracer: Tracer | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._logs = logs
        self._tracer = tracer
        self._now = now

    def begin(self, request: Request, *, request_id: bytes) -> Trail:
        """The trail of `request`; to be told `ended` exactly once."""
        if not self._logs and self._tracer is None:
            return UNOBSERVED
        name = request_id.decode("latin-1")
        trails: list[Trail] = []
        if self._tracer is not None and request.path not in QUIET_PATHS:
            trails.append(self._tracer.begin(request, request_id=name))
        if self._logs:
            trails.append(AccessLine(request, request_id=name, now=self._now))
        if not trails:
            return UNOBSERVED
        return trails[0] if len(trails) == 1 else _Both(*trails)

    def __repr__(self) -> str:
        return f"Observation(logs={self._logs}, tracer={self._tracer!r})"


class _Both:
    """Tells two trails."""

    def __init__(self, first: Trail, second: Trail) -> None:
        self._first = first
        self._second = second

    def identified(self, call: Call, *, key_name: str) -> None:
        self._first.identified(call, key_name=key_name)
        self._second.identified(call, key_name=key_name)

    def counted(self, prompt: PromptCount) -> None:
        self._first.counted(prompt)
        self._second.counted(prompt)

    def admitted(self, *, waited_s: float) -> None:
        self._first.admitted(waited_s=waited_s)
        self._second.admitted(waited_s=waited_s)

    def chosen(self, chosen: Chosen) -> None:
        self._first.chosen(chosen)
        self._second.chosen(chosen)

    def forwarded(self, headers: Headers) -> Headers:
        return self._second.forwarded(self._first.forwarded(headers))

    def answered(self, answer: Answer) -> None:
        self._first.answered(answer)
        self._second.answered(answer)

    def ended(self, status: int | None) -> None:
        self._first.ended(status)
        self._second.ended(status)
