"""Finds what an answer says it cost, in the bytes as they pass. Pure; an answer that says nothing gives None."""

from typing import Protocol

import msgspec

from headrace.gateway.http.message import ResponseHead

_MAX_JSON_BYTES = 4 << 20
_MARK = b'"usage"'


class PromptTokensDetails(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class Usage(msgspec.Struct, frozen=True):
    """OpenAI's `usage`, as far as it is read here."""

    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: PromptTokensDetails | None = None

    @property
    def cached_tokens(self) -> int | None:
        return self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else None


class _WithUsage(msgspec.Struct, frozen=True):
    usage: Usage | None = None


_DECODER = msgspec.json.Decoder(_WithUsage)


class UsageReader(Protocol):
    """Looks at the parts of one body, in order."""

    num_events: int
    """Events seen so far; 0 for a body that is no stream."""

    def feed(self, data: bytes) -> None: ...

    def result(self) -> Usage | None: ...


class EventUsage:
    """Reads server-sent events; `feed` wants whole events. The last usage counts, since some servers repeat it."""

    def __init__(self) -> None:
        self.num_events = 0
        self._usage: Usage | None = None

    def feed(self, data: bytes) -> None:
        self.num_events += data.count(b"\n\n") or data.count(b"\r\n\r\n")
        if _MARK not in data:
            return
        for line in data.splitlines():
            if line.startswith(b"data:") and _MARK in line:
                self._usage = _decode(line[5:]) or self._usage

    def result(self) -> Usage | None:
        return self._usage


class JsonUsage:
    """Reads one JSON body, if it is not longer than 4 MiB."""

    num_events = 0

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._result: Usage | None = None
        self._num_bytes = 0

    def feed(self, data: bytes) -> None:
        self._num_bytes += len(data)
        if self._num_bytes <= _MAX_JSON_BYTES:
            self._parts.append(data)
        else:
            self._parts.clear()

    def result(self) -> Usage | None:
        if self._parts:
            data = b"".join(self._parts)
            self._result = _decode(data)
            self._parts = [data] if self._result is None else []
        return self._result


class NoUsage:
    """For bodies that cannot be read."""

    num_events = 0

    def feed(self, data: bytes) -> None:
        """Nothing to find."""

    def result(self) -> Usage | None:
        return None


class Meter:
    """What one request has used, as far as its answer has told so far; whoever sends the request on keeps it."""

    __slots__ = ("_reader", "is_sent", "status")

    def __init__(self) -> None:
        self.is_sent = False
        """Whether any endpoint got the request."""
        self.status: int | None = None
        """Of the answer that its client gets."""
        self._reader: UsageReader = NoUsage()

    def begin(self, head: ResponseHead) -> None:
        """An answer to be relayed has begun."""
        self.status = head.status
        self._reader = usage_reader(head)

    def feed(self, data: bytes) -> None:
        """A part of its body: whole events of a stream."""
        self._reader.feed(data)

    def usage(self) -> Usage | None:
        """The usage, once the answer has told it."""
        return self._reader.result()

    @property
    def num_events(self) -> int:
        """Events of a stream so far."""
        return self._reader.num_events

    def __repr__(self) -> str:
        return f"Meter(is_sent={self.is_sent}, status={self.status})"


def usage_reader(head: ResponseHead) -> UsageReader:
    """The reader that fits an answer."""
    if not 200 <= head.status < 300:
        return NoUsage()
    if head.is_event_stream:
        return EventUsage()
    return JsonUsage() if head.is_json else NoUsage()


def _decode(data: bytes) -> Usage | None:
    try:
        return _DECODER.decode(data).usage
    except msgspec.MsgspecError:  # the client's own business; here it only means that nothing was said
        return None
