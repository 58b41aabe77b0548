"""Which header fields go through a gateway, and how heads are written (RFC 9110 section 7.6, RFC 9112). Pure.

Rule 1: fields that belong to one connection (hop-by-hop, and those that `Connection` names) go no further.
Rule 2: framing fields are always our own, since bodies are re-framed.
"""

import re
from email.utils import formatdate
from http import HTTPStatus

from headrace.gateway.http.message import Headers
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
_REASONS = {status.value: status.phrase.encode("ascii") for status in HTTPStatus}


def forwarded_request_head(
    *,
    method: str,
    target: bytes,
    headers: Headers,
    host: bytes,
    peer: str,
    request_id: bytes,
    content_length: int,
) -> bytes:
    """The head to send to an endpoint for a client's request."""
    dropped = _dropped(headers, _OWN_IN_REQUEST)
    lines = [b"%b %b HTTP/1.1\r\nhost: %b\r\n" % (method.encode("ascii"), target, host)]
    hops = [value for name, value in headers if name == b"x-forwarded-for"]
    lines += [b"%b: %b\r\n" % (name, value) for name, value in headers if name not in dropped]
    hops.append(peer.encode("ascii"))
    lines.append(
        b"x-request-id: %b\r\nx-forwarded-for: %b\r\ncontent-length: %d\r\n\r\n"
        % (request_id, b", ".join(hops), content_length)
    )
    return b"".join(lines)


def relayed_response_headers(headers: Headers) -> Headers:
    """The fields of an endpoint's answer that its client gets."""
    dropped = _dropped(headers, _OWN_IN_RESPONSE)
    return [item for item in headers if item[0] not in dropped and not item[0].startswith(PREFIX)]


def response_head(
    *, status: int, reason: bytes | None, headers: Headers, content_length: int | None, is_chunked: bool, close: bool
) -> bytes:
    """Status line and header fields of an answer to a client. `reason` None stands for the standard phrase."""
    phrase = _REASONS.get(status, b"") if reason is None else reason
    lines = [b"HTTP/1.1 %d %b\r\n" % (status, phrase)]
    lines += [b"%b: %b\r\n" % item for item in headers]
    if content_length is not None:
        lines.append(b"content-length: %d\r\n" % content_length)
    elif is_chunked:
        lines.append(b"transfer-encoding: chunked\r\n")
    lines.append(b"connection: close\r\n\r\n" if close else b"\r\n")
    return b"".join(lines)


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
