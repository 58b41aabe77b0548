"""Finds what an answer says it cost, in the bytes as they pass. Pure; an answer that says nothing gives None.

The words differ by route: `usage_forms` knows them.
"""

import json
import re
from collections.abc import Callable
from typing import Protocol

from headrace.gateway.http.message import ResponseHead
from headrace.gateway.http.plain_events import EventPipe
from headrace.gateway.routes import UsageForm
from headrace.gateway.usage.forms import Form, Usage, form_of

__all__ = ["EventUsage", "JsonUsage", "Meter", "NoUsage", "Usage", "UsageReader", "usage_reader"]

_MAX_JSON_BYTES = 4 << 20
_MARK = b'"usage"'
_LINE_ENDS = (b"\n", b"\r")
_MAX_END_BYTES = 64 << 10
_TOLD = re.compile(rb'"usage"\s{0,8}:\s{0,8}(?=[{n])')
_ANY_JSON = json.JSONDecoder()


class UsageReader(Protocol):
    """Looks at the parts of one body, in order."""

    num_events: int
    """Events seen so far; 0 for a body that is no stream."""

    def feed(self, data: bytes) -> None: ...

    def result(self) -> Usage | None: ...


class EventUsage:
    """Reads server-sent events, wherever they are cut. The last usage counts, since some servers repeat it."""

    def __init__(self, form: UsageForm = "openai") -> None:
        self.num_events = 0
        self._form = form_of(form)
        self._usage: Usage | None = None
        self._line = bytearray()
        """The beginning of a line whose end has not come."""

    def feed(self, data: bytes) -> None:
        self.num_events += data.count(b"\n\n") or data.count(b"\r\n\r\n")
        if self._line or not data.endswith(_LINE_ENDS):
            data = self._whole_lines(data)
        if _MARK in data:
            self._read(data)

    def result(self) -> Usage | None:
        if self._line:
            self._read(bytes(self._line))
            self._line.clear()
        return self._usage

    def _read(self, lines: bytes) -> None:
        for line in lines.splitlines():
            if line.startswith(b"data:") and _MARK in line:
                self._usage = self._form.read(line[5:]) or self._usage

    def _whole_lines(self, data: bytes) -> bytes:
        end = max(map(data.rfind, _LINE_ENDS)) + 1
        whole = bytes(self._line) + data[:end] if end else b""
        if end:
            self._line.clear()
        if len(self._line) + len(data) - end <= _MAX_JSON_BYTES:
            self._line += data[end:]
        else:
            self._line.clear()  # what follows of it begins no line that is read
        return whole


class JsonUsage:
    """Reads one JSON body. Of one longer than 4 MiB only the end, where engines tell the usage behind all choices."""

    __slots__ = ("_end", "_form", "_num_bytes", "_parts", "_result")
    num_events = 0

    def __init__(self, form: UsageForm = "openai") -> None:
        self._form = form_of(form)
        self._parts: list[bytes] = []
        self._end = b""
        self._result: Usage | None = None
        self._num_bytes = 0

    def feed(self, data: bytes) -> None:
        self._num_bytes += len(data)
        if self._num_bytes <= _MAX_JSON_BYTES:
            self._parts.append(data)
            return
        if not self._end:
            self._end = b"".join(self._parts)
            self._parts.clear()
        self._end = (self._end[-_MAX_END_BYTES:] + data)[-_MAX_END_BYTES:]

    def result(self) -> Usage | None:
        if self._parts:
            data = b"".join(self._parts)
            self._result = self._form.read(data)
            self._parts = [data] if self._result is None else []
        elif self._end:
            self._result = _read_last(self._end, self._form)
        return self._result


def _read_last(end: bytes, form: Form) -> Usage | None:
    """The usage that stands last in the end of a JSON body. Within a text its name could not stand so, for quotes are
    escaped there."""
    told = _TOLD.split(end)
    if len(told) < 2:
        return None
    try:
        _, num_read = _ANY_JSON.raw_decode(told[-1].decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    return form.read(b'{"usage":%b}' % told[-1][:num_read])


class NoUsage:
    """For bodies that cannot be read."""

    num_events = 0

    def feed(self, data: bytes) -> None:
        """Nothing to find."""

    def result(self) -> Usage | None:
        return None


_NO_USAGE = NoUsage()


class Meter:
    """What one request has used, as far as its answer has told so far; whoever sends the request on keeps it."""

    __slots__ = ("_form", "_reader", "feed", "is_sent", "pipe", "status", "usage")

    def __init__(self, form: UsageForm = "openai") -> None:
        self.is_sent = False
        """Whether any endpoint got the request."""
        self.status: int | None = None
        """Of the answer that its client gets."""
        self.feed: Callable[[bytes], None] = _NO_USAGE.feed
        """To be given each part of the body. The reader's own, as `usage` is: each event of a stream passes here."""
        self.usage: Callable[[], Usage | None] = _NO_USAGE.result
        """The usage, once the answer has told it."""
        self.pipe: EventPipe | None = None
        """By which events without usage pass that are not fed."""
        self._form: UsageForm = form
        self._reader: UsageReader = _NO_USAGE

    def forget(self) -> None:
        """The answer broke off before its client got any of it."""
        self.status = None
        self._reader = _NO_USAGE
        self.feed, self.usage = _NO_USAGE.feed, _NO_USAGE.result

    def begin(self, head: ResponseHead) -> None:
        """An answer to be relayed has begun."""
        self.status = head.status
        self._reader = reader = usage_reader(head, self._form)
        self.feed, self.usage = reader.feed, reader.result

    @property
    def num_events(self) -> int:
        """Events of a stream so far."""
        return self._reader.num_events + (0 if self.pipe is None else self.pipe.num_events)

    def __repr__(self) -> str:
        return f"Meter(is_sent={self.is_sent}, status={self.status})"


def usage_reader(head: ResponseHead, form: UsageForm = "openai") -> UsageReader:
    """The reader that fits an answer."""
    if not 200 <= head.status < 300:
        return _NO_USAGE
    if head.is_event_stream:
        return EventUsage(form)
    return JsonUsage(form) if head.is_json else _NO_USAGE
