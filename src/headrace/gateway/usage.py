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

    def feed(self, data: bytes) -> None: ...

    def result(self) -> Usage | None: ...


class EventUsage:
    """Reads server-sent events; `feed` wants whole events. The last usage counts, since some servers repeat it."""

    def __init__(self) -> None:
        self._usage: Usage | None = None

    def feed(self, data: bytes) -> None:
        if _MARK not in data:
            return
        for line in data.splitlines():
            if line.startswith(b"data:") and _MARK in line:
                self._usage = _decode(line[5:]) or self._usage

    def result(self) -> Usage | None:
        return self._usage


class JsonUsage:
    """Reads one JSON body, if it is not longer than 4 MiB."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._num_bytes = 0

    def feed(self, data: bytes) -> None:
        self._num_bytes += len(data)
        if self._num_bytes <= _MAX_JSON_BYTES:
            self._parts.append(data)
        else:
            self._parts.clear()

    def result(self) -> Usage | None:
        return _decode(b"".join(self._parts)) if self._parts else None


class NoUsage:
    """For bodies that cannot be read."""

    def feed(self, data: bytes) -> None:
        """Nothing to find."""

    def result(self) -> Usage | None:
        return None


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
