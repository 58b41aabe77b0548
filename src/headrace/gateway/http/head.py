"""Which header fields go through a gateway, and how heads are written (RFC 9110 section 7.6, RFC 9112). Pure.

Rule 1: fields that belong to one connection (hop-by-hop, and those that `Connection` names) go no further.
Rule 2: framing fields are always our own, since bodies are re-framed.
"""

import re
from collections.abc import Iterable
from email.utils import formatdate
from http import HTTPStatus

from headrace.gateway.http.head_facts import Headers, HeadFacts
from headrace.gateway.http.own_headers import PREFIX

_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
    }
)
_OWN_IN_REQUEST = _HOP_BY_HOP | {b"host", b"content-length", b"expect", b"x-forwarded-for", b"x-request-id"}
_OWN_IN_RESPONSE = _HOP_BY_HOP | {b"content-length"}
_REQUEST_ID = re.compile(rb"[!#-;=?-~]{1,128}")
"""Visible ASCII without quotes and angle brackets: nothing that a log or a page could misread."""
_REQUEST_HEAD = (
    b"%b %b HTTP/1.1\r\nhost: %b\r\n%bx-request-id: %b\r\nx-forwarded-for: %b%b\r\ncontent-length: %d\r\n\r\n"
)
_REASONS = {status.value: status.phrase.encode("ascii") for status in HTTPStatus}


def forwarded_request_head(
    *, method: str, target: bytes, facts: HeadFacts, host: bytes, peer: str, request_id: bytes, content_length: int
) -> bytes:
    """The head to send to an endpoint for a client's request, of whose fields `facts` tell."""
    lines, hops = facts.of(_forwarded)
    return _REQUEST_HEAD % (
        method.encode("ascii"),
        target,
        host,
        lines,
        request_id,
        hops,
        peer.encode("ascii"),
        content_length,
    )


def _forwarded(headers: Headers) -> tuple[bytes, bytes]:
    """The lines that go on to an endpoint, and the hops of the request so far."""
    dropped = _dropped(headers, _OWN_IN_REQUEST)
    hops = [value + b", " for name, value in headers if name == b"x-forwarded-for"]
    return lines_of([item for item in headers if item[0] not in dropped]), b"".join(hops)


def relayed_lines(headers: Headers) -> bytes:
    """The fields of an endpoint's answer that its client gets, as they are written."""
    dropped = _dropped(headers, _OWN_IN_RESPONSE)
    return lines_of([item for item in headers if item[0] not in dropped and not item[0].startswith(PREFIX)])


def lines_of(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Header fields as they are written."""
    return b"".join([b"%b: %b\r\n" % item for item in headers])


def response_head(
    *, status: int, reason: bytes | None, lines: bytes, content_length: int | None, is_chunked: bool, close: bool
) -> bytes:
    """Status line and header fields of an answer to a client. `reason` None stands for the standard phrase."""
    phrase = _REASONS.get(status, b"") if reason is None else reason
    length = b""
    if content_length is not None:
        length = b"content-length: %d\r\n" % content_length
    elif is_chunked:
        length = b"transfer-encoding: chunked\r\n"
    end = b"connection: close\r\n\r\n" if close else b"\r\n"
    return b"HTTP/1.1 %d %b\r\n%b%b%b" % (status, phrase, lines, length, end)


def request_id_of(given: bytes | None) -> bytes | None:
    """The id that a client gave its request, if it is one that can be passed on and logged."""
    return given if given is not None and _REQUEST_ID.fullmatch(given) else None


def http_date() -> bytes:
    """The `Date` field's value now."""
    return formatdate(usegmt=True).encode("ascii")


def _dropped(headers: Headers, own: frozenset[bytes]) -> frozenset[bytes]:
    """`own`, and the names that the `Connection` fields of this message list."""
    named = [token.strip().lower() for name, value in headers if name == b"connection" for token in value.split(b",")]
    return own.union(named) if named else own
