"""The values that pass between the HTTP readers and the rest: requests and heads of answers. No I/O."""

from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.errors import InvalidRequestError, RequestError
from headrace.gateway.http.head_facts import Headers, HeadFacts, first_fields


@dataclass(slots=True, kw_only=True)
class Request:
    """One request of a client, read whole: what was sent, its framing undone."""

    method: str
    target: bytes
    """Path and query as the client sent them; never with scheme and host."""
    headers: Headers
    is_http10: bool
    keep_alive: bool
    body: bytes = b""
    received_s: float = 0.0
    """time.monotonic() when the last byte was in."""
    peer: str = ""
    """Address of the client, without port."""
    path: str = ""
    """The target without its query."""
    known: HeadFacts | None = field(default=None, compare=False, repr=False)
    """What earlier requests with such a head have shown."""

    def __post_init__(self) -> None:
        if not self.path:
            self.path = path_of(self.target)

    @property
    def facts(self) -> HeadFacts:
        """What the header fields say, but for the Content-Length."""
        if self.known is None:
            self.known = HeadFacts(self.headers)
        return self.known

    def header(self, name: bytes) -> bytes | None:
        """The first field called `name` (lower case), which is not the Content-Length."""
        return self.facts.of(first_fields).get(name)

    def change_headers(self, change: Callable[[Headers], Headers]) -> None:
        """Go on with the fields that `change` makes of these; see HeadFacts for what it must be."""
        self.known = self.facts.changed(change)
        self.headers = self.known.headers

    def set_headers(self, headers: Headers) -> None:
        """Go on with these fields."""
        if headers is not self.headers:
            self.headers, self.known = headers, None


def path_of(target: bytes) -> str:
    """A request's target without its query."""
    return target.partition(b"?")[0].decode("latin-1")


@dataclass(slots=True, kw_only=True)
class ResponseHead:
    """Status line and header fields of an endpoint's answer."""

    status: int
    reason: bytes
    headers: Headers = field(default_factory=list)
    content_length: int | None = None
    """None: the body is chunked, or ends when the connection does."""
    is_event_stream: bool = False
    """Server-sent events that are not compressed, so that events can be told apart."""
    is_json: bool = False
    """JSON that is not compressed."""
    known: HeadFacts | None = field(default=None, compare=False, repr=False)
    """What earlier answers with such a head have shown."""

    @property
    def facts(self) -> HeadFacts:
        """What the header fields say, but for the Content-Length."""
        if self.known is None:
            self.known = HeadFacts(self.headers)
        return self.known


class HeadTooLargeError(RequestError):
    """Request line and header fields together are over the limit."""

    status_hint = 431
    default_code = "request_header_fields_too_large"


class RequestTimeoutError(RequestError):
    """The client took too long to send its request."""

    status_hint = 408
    default_code = "request_timeout"


class RouteNotFoundError(RequestError):
    """No such path."""

    status_hint = 404
    error_type = "not_found_error"
    default_code = "unknown_url"


class MethodNotAllowedError(RequestError):
    """The path exists, the method does not. `allow` names those that do."""

    status_hint = 405
    default_code = "method_not_allowed"

    def __init__(self, message: str, *, allow: str) -> None:
        super().__init__(message)
        self.allow = allow


class HttpVersionError(InvalidRequestError):
    """Neither HTTP/1.1 nor HTTP/1.0."""

    status_hint = 505
    default_code = "http_version_not_supported"
