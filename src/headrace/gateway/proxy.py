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
from dataclasses import dataclass

from headrace.errors import UpstreamConnectError, UpstreamError, UpstreamTimeoutError
from headrace.gateway.event_boundary import EventBoundary
from headrace.gateway.http.head import forwarded_request_head, relayed_response_headers
from headrace.gateway.http.message import Headers, ResponseHead
from headrace.gateway.http.response_writer import ResponseWriter
from headrace.gateway.identify import Call
from headrace.gateway.upstream.connection import UpstreamConnection
from headrace.gateway.upstream.pool import UpstreamPool
from headrace.gateway.usage import NoUsage, Usage, UsageReader, usage_reader
from headrace.openai.errors import error_body
from headrace.openai.sse import encode_event

_SERVICE_UNAVAILABLE = 503


class EndpointUnavailableError(UpstreamError):
    """The endpoint answered 503: it is going down, or has too much to do."""

    status_hint = 503
    default_code = "endpoint_unavailable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """How one attempt ended."""

    status: int | None = None
    """What the endpoint answered; None if it did not."""
    error: UpstreamError | None = None
    """Why the answer is not complete."""
    usage: Usage | None = None
    first_byte_s: float | None = None
    """From the request sent to the head of the answer."""
    asks_to_wait: bool = False
    """A 503 that says when to come back: an endpoint that is busy, not one that is broken."""
    was_relayed: bool = False
    """Whether the client has got any of it."""

    @property
    def can_retry(self) -> bool:
        """Whether another endpoint may be asked: this one cannot have worked on the request to any purpose."""
        if self.was_relayed or self.error is None:
            return False
        is_slow = isinstance(self.error, UpstreamTimeoutError)
        if is_slow:
            return self.error.code == "upstream_connect_timeout"
        return isinstance(self.error, (UpstreamConnectError, EndpointUnavailableError))


async def relay(
    call: Call,
    pool: UpstreamPool,
    client: ResponseWriter,
    *,
    own_headers: Callable[[ResponseHead], Headers],
    holds_503: bool,
) -> Answer:
    """Send `call` to the endpoint of `pool` and its answer to `client`.

    `own_headers` is asked for the gateway's own header fields when the answer's head is relayed. With `holds_503` an
    answer of 503 is kept from the client, and another endpoint can be asked. Upstream's failures come back in the
    Answer; when nothing was relayed the client is still to be answered. Cancelled, it closes the endpoint's connection.
    """
    head = _request_head(call, pool)
    connection = pool.take_idle()
    if connection is not None:
        answer = await _exchange((head, *call.body), connection, client, own_headers=own_headers, holds_503=holds_503)
        if not isinstance(answer.error, UpstreamConnectError):
            return answer
        # The endpoint closed the idle connection while we sent; a fresh one tells whether it is there.
    try:
        connection = await pool.connect()
    except UpstreamError as error:
        return Answer(error=error)
    return await _exchange((head, *call.body), connection, client, own_headers=own_headers, holds_503=holds_503)


async def _exchange(
    parts: tuple[bytes, ...],
    connection: UpstreamConnection,
    client: ResponseWriter,
    *,
    own_headers: Callable[[ResponseHead], Headers],
    holds_503: bool,
) -> Answer:
    sink = _Relay(connection, client, own_headers=own_headers, holds_503=holds_503)
    connection.send(parts, sink=sink)
    try:
        return await sink.ended
    finally:
        client.producer = None
        if not sink.has_ended:  # after its end the connection may already serve somebody else
            connection.abandon()


def _request_head(call: Call, pool: UpstreamPool) -> bytes:
    request = call.request
    return forwarded_request_head(
        method=request.method,
        target=pool.address.prefix + request.target,
        headers=request.headers,
        host=pool.address.host_header,
        peer=request.peer,
        request_id=call.request_id,
        content_length=sum(map(len, call.body)),
    )


class _Relay:
    """Takes the answer from the endpoint's connection and writes it to the client. `ended` gets the Answer."""

    def __init__(
        self,
        connection: UpstreamConnection,
        client: ResponseWriter,
        *,
        own_headers: Callable[[ResponseHead], Headers],
        holds_503: bool,
    ) -> None:
        self.ended: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.has_ended = False
        self._connection = connection
        self._client = client
        self._own_headers = own_headers
        self._holds_503 = holds_503
        self._sent_s = time.monotonic()
        self._first_byte_s: float | None = None
        self._head: ResponseHead | None = None
        self._usage: UsageReader = NoUsage()
        self._boundary: EventBoundary | None = None

    def on_head(self, head: ResponseHead) -> None:
        self._first_byte_s = time.monotonic() - self._sent_s
        if head.status == _SERVICE_UNAVAILABLE and self._holds_503:
            self._hold_back(head)
            return
        self._head = head
        self._usage = usage_reader(head)
        if head.is_event_stream and head.content_length is None:
            self._boundary = EventBoundary()
        self._client.start(
            status=head.status,
            reason=head.reason,
            headers=relayed_response_headers(head.headers) + self._own_headers(head),
            content_length=head.content_length,
        )
        self._client.producer = self
        if self._client.is_paused:
            self.pause()

    def on_body(self, data: bytes) -> None:
        if self._boundary is not None:
            data = self._boundary.push(data)
        self._usage.feed(data)
        self._client.send(data)

    def on_read_end(self) -> None:
        self._client.flush()

    def on_end(self, error: UpstreamError | None) -> None:
        if error is None:
            self._send_rest()
            self._client.finish()
        elif self._head is not None:
            self._tell_break(error)
        self._end(
            Answer(
                status=self._head.status if self._head else None,
                error=error,
                usage=self._usage.result(),
                first_byte_s=self._first_byte_s,
                asks_to_wait=self._head is not None and _asks_to_wait(self._head),
                was_relayed=self._head is not None,
            )
        )

    def pause(self) -> None:
        self._connection.pause_reading()

    def resume(self) -> None:
        self._connection.resume_reading()

    def _hold_back(self, head: ResponseHead) -> None:
        self._connection.abandon()
        self._end(
            Answer(
                status=head.status,
                error=EndpointUnavailableError("It answered 503."),
                first_byte_s=self._first_byte_s,
                asks_to_wait=_asks_to_wait(head),
            )
        )

    def _send_rest(self) -> None:
        if self._boundary is not None:
            rest = self._boundary.take_rest()
            self._usage.feed(rest)
            self._client.send(rest)

    def _tell_break(self, error: UpstreamError) -> None:
        if self._boundary is None:
            self._client.break_off()
            return
        self._client.send((b"\n\n" if self._boundary.is_mid_event else b"") + encode_event(error_body(error)))
        self._client.closes = True
        self._client.finish()

    def _end(self, answer: Answer) -> None:
        self.has_ended = True
        if not self.ended.done():
            self.ended.set_result(answer)


def _asks_to_wait(head: ResponseHead) -> bool:
    return any(name == b"retry-after" for name, _ in head.headers)
