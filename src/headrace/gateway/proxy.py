"""Sends a request to one endpoint and relays the answer to the client, as it arrives.

Theory. The answer passes from the endpoint's protocol straight to the client's, without a task in between; the handler
waits for the end only. A client that is slow pauses the endpoint's socket, so at most a few socket buffers are held.

Rule 1: until the head of an answer is relayed, an endpoint's failure leaves the client untouched, and another can be
tried.
Rule 2: after that, a failure is told so that no client takes it for the end: an error event where the answer is a
stream of events, else a body that breaks off.
Rule 3: however `relay` is left, its connection is back in the pool, or closed.
"""

import asyncio
import time
from collections.abc import Callable

import msgspec

from headrace.errors import HeadraceError, UpstreamConnectError, UpstreamError, UpstreamTimeoutError
from headrace.gateway.error_form import error_event
from headrace.gateway.event_boundary import EventBoundary
from headrace.gateway.http.head import forwarded_request_head, relayed_lines
from headrace.gateway.http.head_facts import Headers
from headrace.gateway.http.message import ResponseHead
from headrace.gateway.http.plain_events import EventPipe
from headrace.gateway.http.response_writer import ResponseWriter
from headrace.gateway.identify import Call
from headrace.gateway.retry import RETRIED_STATUSES, is_fault_status
from headrace.gateway.upstream.connection import UpstreamConnection
from headrace.gateway.upstream.pool import UpstreamPool
from headrace.gateway.usage.stream_usage import without_usage
from headrace.gateway.usage.usage import Meter, Usage

_REFUSALS = frozenset({400, 422})
_MAX_HELD_JSON_BYTES = 1 << 20


class EndpointUnavailableError(UpstreamError):
    """The endpoint answered that it cannot: it is going down, has too much to do, or failed."""

    status_hint = 503
    default_code = "endpoint_unavailable"


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """How one attempt ended."""

    status: int | None = None
    """What the endpoint answered; None if it did not."""
    error: UpstreamError | None = None
    """Why the answer is not complete."""
    usage: Usage | None = None
    first_byte_s: float | None = None
    """From the request sent to the head of the answer."""
    asks_to_wait: bool = False
    """It says when to come back."""
    was_relayed: bool = False
    """Whether the client has got any of it."""
    was_kept_back: bool = False
    """Whether it was dropped, because another endpoint will be asked."""

    @property
    def can_retry(self) -> bool:
        """Whether another endpoint may be asked: whatever ends before the client has got a byte can be tried again, but
        for an answer that did not begin in time, since another endpoint would take as long."""
        if self.was_relayed or self.error is None:
            return False
        return not isinstance(self.error, UpstreamTimeoutError) or self.error.code == "upstream_connect_timeout"

    @property
    def is_refusal(self) -> bool:
        """Whether it refused the request as it was put, and its client has not heard of that."""
        return self.was_kept_back and self.status in _REFUSALS

    @property
    def is_fault(self) -> bool:
        """Whether the endpoint did not do its part. A 503 that asks to wait is load, and no fault."""
        if self.status == 503 and self.asks_to_wait:
            return False
        return self.error is not None or (self.status is not None and is_fault_status(self.status))


class RelayPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is done with an answer besides relaying it."""

    meter: Meter
    """Reads the usage as it passes."""
    own_lines: Callable[[ResponseHead], bytes]
    """The gateway's own header fields as they are written, asked for when the answer's head is relayed."""
    own_trailers: Callable[[], Headers] | None = None
    """Fields that follow a stream, asked for at its end."""
    keeps_back: Callable[[], bool]
    """Asked when an endpoint answers that it cannot: whether to drop that answer, since another will be asked."""
    holds_refusals: bool = False
    """Drop an answer of 400 or 422, since the prompt will be sent once more in another form."""
    holds_json: bool = False
    """Relay the head of a JSON answer only with the whole of it (up to 1 MiB), so that `own_lines` can tell what the
    meter has read. No client can do anything with a part of it."""
    hides_usage: bool = False
    """Leave out events that tell nothing but the usage."""
    path: str = ""
    """Of the request; the form of an error goes by it."""


async def relay(call: Call, pool: UpstreamPool, client: ResponseWriter, *, plan: RelayPlan) -> Answer:
    """Send `call` to the endpoint of `pool` and its answer to `client`.

    Upstream's failures come back in the Answer; when nothing was relayed the client is still to be answered.
    Cancelled, it closes the endpoint's connection.
    """
    parts = (_request_head(call, pool), *call.body)
    connection = pool.take_idle()
    while True:
        was_idle = connection is not None
        try:
            sink = _Relay(connection or await pool.connect(), client, plan=plan)
        except UpstreamError as error:
            return Answer(error=error)
        plan.meter.is_sent = True
        try:
            answer = await sink.send(parts)
        finally:
            client.producer = None
            sink.abandon_unless_ended()
        if not was_idle or not isinstance(answer.error, UpstreamConnectError):
            return answer
        # The endpoint closed the idle connection while we sent; a fresh one tells whether it is there.
        pool.num_resent += 1
        connection = None


def _request_head(call: Call, pool: UpstreamPool) -> bytes:
    request = call.request
    facts = request.facts
    if pool.authorization is not None:
        facts = facts.changed(pool.authorization)
    return forwarded_request_head(
        method=request.method,
        target=pool.address.prefix + request.target,
        facts=facts,
        host=pool.address.host_header,
        peer=request.peer,
        request_id=call.request_id,
        content_length=sum(map(len, call.body)),
    )


class _Relay:
    """Takes the answer from the endpoint's connection and writes it to the client."""

    def __init__(self, connection: UpstreamConnection, client: ResponseWriter, *, plan: RelayPlan) -> None:
        self._ended: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._has_ended = False
        self._connection = connection
        self._client = client
        self._plan = plan
        self._sent_s = time.monotonic()
        self._first_byte_s: float | None = None
        self._head: ResponseHead | None = None
        self._held: list[bytes] | None = None
        self._num_held_bytes = 0
        self._boundary: EventBoundary | None = None

    def send(self, parts: tuple[bytes, ...]) -> asyncio.Future[Answer]:
        """Send the request; what comes back is done when its answer has ended."""
        self._connection.send(parts, sink=self)
        return self._ended

    def abandon_unless_ended(self) -> None:
        """Nobody waits for the answer any more. After its end the connection may already serve somebody else."""
        if not self._has_ended:
            self._connection.abandon()

    def on_head(self, head: ResponseHead) -> None:
        self._first_byte_s = time.monotonic() - self._sent_s
        if head.status in RETRIED_STATUSES and self._plan.keeps_back():
            self._hold_back(head)
            return
        if head.status in _REFUSALS and self._plan.holds_refusals:
            self._hold_back(head)
            return
        self._head = head
        self._plan.meter.begin(head)
        if head.is_event_stream and head.content_length is None:
            self._boundary = EventBoundary()
        if self._plan.holds_json and head.is_json:
            self._held = []
        else:
            self._start(head)

    def on_body(self, data: bytes) -> None:
        if self._boundary is not None:
            data = self._boundary.push(data)
        self._plan.meter.feed(data)
        if self._held is not None:
            self._hold_json(data)
        else:
            self._send(data)

    def event_pipe(self) -> EventPipe | None:
        if self._boundary is None or not self._boundary.is_between_events:
            return None
        pipe = self._client.event_pipe()
        if pipe is not None:
            self._plan.meter.pipe = pipe
        return pipe

    def on_read_end(self) -> None:
        self._client.flush()

    def on_end(self, error: UpstreamError | None) -> None:
        try:
            self._finish(error)
        finally:
            if not self._has_ended and not self._ended.done():  # whatever went wrong, somebody waits
                self._has_ended = True
                self._ended.set_exception(HeadraceError("The gateway failed at an answer's end; its log says why."))

    def _finish(self, error: UpstreamError | None) -> None:
        if error is not None and self._held is not None:  # the client has got none of it
            self._plan.meter.forget()
            self._end(Answer(error=error, first_byte_s=self._first_byte_s))
            return
        self._send_held()
        if error is None:
            self._send_rest()
            self._client.finish(trailers=self._trailers())
        elif self._head is not None:
            self._tell_break(error)
        self._end(
            Answer(
                status=self._head.status if self._head else None,
                error=error,
                usage=self._plan.meter.usage(),
                first_byte_s=self._first_byte_s,
                asks_to_wait=self._head is not None and self._head.facts.of(_asks_to_wait),
                was_relayed=self._head is not None,
            )
        )

    def pause(self) -> None:
        self._connection.pause_reading()

    def resume(self) -> None:
        self._connection.resume_reading()

    def _start(self, head: ResponseHead) -> None:
        lines = head.facts.of(relayed_lines) + self._plan.own_lines(head)
        self._client.start(status=head.status, reason=head.reason, lines=lines, content_length=head.content_length)
        self._client.producer = self
        if self._client.is_paused:
            self.pause()

    def _send(self, data: bytes) -> None:
        self._client.send(without_usage(data) if self._plan.hides_usage and self._boundary is not None else data)

    def _hold_json(self, data: bytes) -> None:
        assert self._held is not None
        self._held.append(data)
        self._num_held_bytes += len(data)
        if self._num_held_bytes > _MAX_HELD_JSON_BYTES:
            self._send_held()

    def _send_held(self) -> None:
        if self._held is None or self._head is None:
            return
        held, self._held = self._held, None
        self._start(self._head)
        for data in held:
            self._client.send(data)

    def _trailers(self) -> Headers | None:
        if self._boundary is None or self._plan.own_trailers is None:
            return None
        return self._plan.own_trailers()

    def _hold_back(self, head: ResponseHead) -> None:
        self._connection.abandon()
        self._end(
            Answer(
                status=head.status,
                error=EndpointUnavailableError(f"It answered {head.status}."),
                first_byte_s=self._first_byte_s,
                asks_to_wait=head.facts.of(_asks_to_wait),
                was_kept_back=True,
            )
        )

    def _send_rest(self) -> None:
        if self._boundary is not None:
            rest = self._boundary.take_rest()
            self._plan.meter.feed(rest)
            self._send(rest)

    def _tell_break(self, error: UpstreamError) -> None:
        if self._boundary is None:
            self._client.break_off()
            return
        event = error_event(error, path=self._plan.path)
        self._client.send(b"\n\n" + event if self._boundary.is_mid_event else event)
        self._client.closes = True
        self._client.finish()

    def _end(self, answer: Answer) -> None:
        self._has_ended = True
        if not self._ended.done():
            self._ended.set_result(answer)


def _asks_to_wait(headers: Headers) -> bool:
    return any(name == b"retry-after" for name, _ in headers)
