"""Bytes of one client connection in, whole requests out. Enforces sizes and framing; does no I/O.

What could be read in two ways is refused rather than repaired, since an endpoint behind us might read it the other way
(request smuggling). llhttp refuses most of it; what it lets through is refused in `_check_framing`. A request like the
last one goes past both, see `whole`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import httptools

from headrace.errors import InvalidRequestError, PayloadTooLargeError, RequestError
from headrace.gateway.http.head_facts import Headers, HeadFacts
from headrace.gateway.http.message import HeadTooLargeError, HttpVersionError, Request, path_of
from headrace.gateway.http.whole import Whole, whole_message

_NEVER_KNOWN = frozenset({b"expect", b"upgrade", b"transfer-encoding", b"trailer"})
"""Fields of requests that are parsed each time."""
_MAX_FIELDS = 256
_MAX_KNOWN_HEADS = 256
_MAX_KNOWN_HEAD_BYTES = 4096
_MIN_PART_BYTES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeLimits:
    """How many bytes one request may have."""

    max_head_bytes: int
    max_body_bytes: int


class RequestReader:
    """Reads requests off one connection, in order, calling `on_request` for each.

    `on_head` is called when a request's head is complete: True says that its client waits for `100 Continue`.
    """

    def __init__(
        self,
        *,
        limits: SizeLimits,
        on_head: Callable[[bool], None],
        on_request: Callable[[Request], None],
        heads: "KnownHeads | None" = None,
    ) -> None:
        """`heads` may be shared by the readers of a server; None: heads of its own."""
        self._limits = limits
        self._heads = KnownHeads() if heads is None else heads
        self._on_head_done = on_head
        self._on_request = on_request
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._refusal: RequestError | None = None
        self._ignores_head = False
        self._awaits_upgrade_offset = False
        self.is_in_head = False
        self.is_in_body = False
        self.num_body_bytes = 0
        self._url = b""
        self._headers: Headers = []
        self._num_head_bytes = 0
        self._num_unaccounted_bytes = 0
        self._body: list[bytes | bytearray] = []
        self._method = ""
        self._version = ""
        self._keep_alive = False
        self._num_complete = 0

    def feed(self, data: bytes) -> None:
        """Take bytes from the client. Raises a RequestError when they are no request that we take; the connection is
        then of no more use."""
        whole = None if self.is_in_head or self.is_in_body else whole_message(data)
        if whole is not None and len(data) <= self._limits.max_body_bytes:
            known = self._heads.find(whole)
            if known is not None:
                self._on_request(known.request(data, whole))
                return
        parser = self._parser
        if parser is None:
            return
        if not self.is_in_body:
            self.is_in_head = True
        self._num_complete = 0
        self._num_unaccounted_bytes += len(data)
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._decline_upgrade(data, offset=offer.args[0])
        except httptools.HttpParserError as error:
            raise self._refusal or InvalidRequestError(f"This is not HTTP/1.1: {error}.") from error
        # What belongs to no body yet is head, chunk framing or trailer; all of these are bounded alike.
        if self._num_unaccounted_bytes > self._limits.max_head_bytes and (self.is_in_head or self.is_in_body):
            raise self._head_too_large()
        if whole is not None and self._num_complete == 1 and not self.is_in_head and not self.is_in_body:
            self._remember(whole)

    def close(self) -> None:
        """Of no more use: let go of what refers back to this, so that all of it is freed at once."""
        self._parser = None
        self._on_head_done = self._on_request = _ignore

    def _remember(self, whole: Whole) -> None:
        """What was just read, for the next request like it."""
        names = [name for name, _ in self._headers]
        if len(whole.head) > _MAX_KNOWN_HEAD_BYTES:
            return  # such heads are rare, and many of them would be much to keep
        if not self._keep_alive or self._version != "1.1" or not _NEVER_KNOWN.isdisjoint(names):
            return
        if names.count(b"content-length") == 1:
            length_at = names.index(b"content-length")
            known = KnownHead(
                method=self._method, target=_origin_form(self._url), headers=self._headers, length_at=length_at
            )
            self._heads.keep(whole, known)

    # llhttp's callbacks, in the order in which they come

    def on_message_begin(self) -> None:
        if not self._ignores_head:
            self._start_message()
            self.is_in_head = True

    def on_url(self, part: bytes) -> None:
        if not self._ignores_head:
            self._url += part
            self._count_head_bytes(len(part))

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._ignores_head or self.is_in_body:
            return  # a trailer: bounded by feed(), of no use to anybody here
        self._count_head_bytes(len(name) + len(value))
        if len(self._headers) == _MAX_FIELDS:
            self._refuse(HeadTooLargeError(f"The request's head has more than {_MAX_FIELDS} fields."))
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.is_in_head, self.is_in_body = False, True
        self._num_unaccounted_bytes = 0
        if self._ignores_head:
            self._ignores_head = False
            return
        parser = self._parser
        assert parser is not None
        self._keep_alive = parser.should_keep_alive()
        self._method = parser.get_method().decode("ascii")
        self._version = parser.get_http_version()
        self._check_framing()
        self._awaits_upgrade_offset = parser.should_upgrade()
        expectation = [value.lower() for name, value in self._headers if name == b"expect"]
        self._on_head_done(b"100-continue" in expectation and self._version == "1.1")

    def on_body(self, data: bytes) -> None:
        self._num_unaccounted_bytes = 0
        self.num_body_bytes += len(data)
        if self.num_body_bytes > self._limits.max_body_bytes:
            self._refuse(self._too_large())
        self._keep(data)

    def _keep(self, data: bytes) -> None:
        """Small parts are joined at once: kept by themselves, chunks of a byte would take fifty times their size."""
        if not self._body or len(data) >= _MIN_PART_BYTES:
            self._body.append(data)
            return
        last = self._body[-1]
        if isinstance(last, bytearray):
            last += data
        else:
            self._body.append(bytearray(data))

    def on_message_complete(self) -> None:
        if self._awaits_upgrade_offset:
            return  # the body is still to come, see _decline_upgrade
        self.is_in_head = self.is_in_body = False
        self._num_unaccounted_bytes = 0
        self._num_complete += 1
        parts, self._body = self._body, []
        request = Request(
            method=self._method,
            target=_origin_form(self._url),
            headers=self._headers,
            is_http10=self._version == "1.0",
            keep_alive=self._keep_alive,
            body=b"".join(parts) if len(parts) != 1 else bytes(parts[0]),
        )
        self._on_request(request)

    def _start_message(self) -> None:
        self._url = b""
        self._headers = []
        self._num_head_bytes = 0
        self._num_unaccounted_bytes = 0
        self._body = []
        self.num_body_bytes = 0

    def _check_framing(self) -> None:
        if self._version not in {"1.0", "1.1"}:
            self._refuse(HttpVersionError(f"HTTP/{self._version} is not served here; use HTTP/1.1."))
        if self._method == "CONNECT":
            self._refuse(InvalidRequestError("CONNECT is not served here."))
        hosts = [value for name, value in self._headers if name == b"host"]
        if len(hosts) > 1 or (not hosts and self._version == "1.1"):
            self._refuse(InvalidRequestError(f"A request has one Host field; this one has {len(hosts)}."))
        for name, value in self._headers:
            if name == b"transfer-encoding" and (value.strip().lower() != b"chunked" or self._version == "1.0"):
                coding = value.decode("latin-1")
                self._refuse(InvalidRequestError(f"Transfer-Encoding {coding!r} is not served here; use 'chunked'."))
            if name == b"content-length" and int(value) > self._limits.max_body_bytes:
                self._refuse(self._too_large())

    def _count_head_bytes(self, num_bytes: int) -> None:
        self._num_head_bytes += num_bytes
        if self._num_head_bytes > self._limits.max_head_bytes:
            self._refuse(self._head_too_large())

    def _head_too_large(self) -> HeadTooLargeError:
        return HeadTooLargeError(f"The request's head is over {self._limits.max_head_bytes} bytes.")

    def _too_large(self) -> PayloadTooLargeError:
        return PayloadTooLargeError(f"The request's body is over {self._limits.max_body_bytes} bytes.")

    def _refuse(self, error: RequestError) -> None:
        """Leave llhttp with `error`; it swallows what a callback raises, so feed() raises it again."""
        self._refusal = error
        raise error

    def _decline_upgrade(self, data: bytes, *, offset: int) -> None:
        """Read on as if no upgrade had been asked for, which a server may (RFC 9110 section 7.8).

        Some clients offer h2c on every request that has a body; llhttp stops at the end of such a head and would lose
        the body. A fresh parser gets a head that says the framing again, and then the rest.
        """
        self._awaits_upgrade_offset = False
        self._ignores_head = True
        framing = [
            b"%b: %b\r\n" % item for item in self._headers if item[0] in {b"content-length", b"transfer-encoding"}
        ]
        close = b"" if self._keep_alive else b"connection: close\r\n"
        self._parser = httptools.HttpRequestParser(self)
        self.feed(b"POST / HTTP/%b\r\n%b%b\r\n" % (self._version.encode("ascii"), b"".join(framing), close))
        if rest := data[offset:]:
            self.feed(rest)


class KnownHeads:
    """The heads of the latest requests, all of their bytes but the lengths; at most 256, of 4 KiB at most."""

    def __init__(self) -> None:
        self._heads: dict[bytes, KnownHead] = {}

    def find(self, whole: Whole) -> "KnownHead | None":
        return self._heads.get(whole.head)

    def keep(self, whole: Whole, known: "KnownHead") -> None:
        if len(self._heads) >= _MAX_KNOWN_HEADS:
            self._heads.clear()  # clients whose heads differ every time gain nothing here, and cost others little
        self._heads[whole.head] = known

    def __repr__(self) -> str:
        return f"KnownHeads({len(self._heads)})"


class KnownHead:
    """A head that was understood, and the requests that come behind heads like it."""

    __slots__ = ("_facts", "_headers", "_length_at", "_method", "_path", "_target")

    def __init__(self, *, method: str, target: bytes, headers: Headers, length_at: int) -> None:
        self._method = method
        self._target = target
        self._headers = list(headers)
        self._length_at = length_at
        self._path = path_of(target)
        self._facts = HeadFacts(headers)

    def request(self, data: bytes, whole: Whole) -> Request:
        headers = self._headers.copy()
        headers[self._length_at] = (b"content-length", whole.digits)
        return Request(
            method=self._method,
            target=self._target,
            headers=headers,
            is_http10=False,
            keep_alive=True,
            body=data[whole.body_at :],
            path=self._path,
            known=self._facts,
        )


def _ignore(_: object) -> None:
    """What is read when nobody listens any more."""


def _origin_form(url: bytes) -> bytes:
    """Path and query of a request target, which may also be an absolute URL (RFC 9112 section 3.2.2)."""
    if url.startswith(b"/"):
        return url
    _, _, rest = url.partition(b"://")
    authority, slash, path = rest.partition(b"/")
    return slash + path if slash and b"?" not in authority else b"/"  # `http://h?a=/b` has no path but a query
