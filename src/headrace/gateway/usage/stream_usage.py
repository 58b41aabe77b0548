"""Streams tell their usage only when asked. The gateway asks where it meters; who did not ask is not told. Pure."""

import re

import msgspec

from headrace.gateway.identify import Call
from headrace.gateway.unreadable import UNREADABLE

_EVENT = re.compile(rb".*?(?:\r\n\r\n|\n\n|\r\r|\Z)", re.DOTALL)
_MARK = b'"usage"'
_ASKING = b',"stream_options":{"include_usage":true}'


class _Options(msgspec.Struct):
    include_usage: bool | None = None


class _UsageEvent(msgspec.Struct):
    usage: dict[str, object] | None = None
    choices: list[msgspec.Raw] | None = None


_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_OPTIONS = msgspec.json.Decoder(_Options | None)
_USAGE_EVENT = msgspec.json.Decoder(_UsageEvent)


def ask_usage(call: Call) -> Call:
    """`call` as it is when its answer will tell its usage anyway; else with `stream_options.include_usage`, and the
    mark that its client did not ask for it."""
    if not call.fields.stream or not call.route.traits.asks_usage or call.hides_usage:
        return call
    given = call.fields.stream_options
    if not given:
        return msgspec.structs.replace(call, body=_with_last_member(call.body, _ASKING), hides_usage=True)
    try:
        options = _OPTIONS.decode(given)
        if options is not None and options.include_usage:
            return call
        body = _OBJECT.decode(b"".join(call.body))
        merged = _OBJECT.decode(given) if options is not None else {}
    except UNREADABLE:
        return call  # for the engine to refuse
    merged["include_usage"] = msgspec.Raw(b"true")
    body["stream_options"] = msgspec.Raw(msgspec.json.encode(merged))
    return msgspec.structs.replace(call, body=(msgspec.json.encode(body),), hides_usage=True)


def _with_last_member(body: tuple[bytes, ...], member: bytes) -> tuple[bytes, ...]:
    """A JSON object that is not empty, with one more member; its own bytes stay as they are."""
    *before, last = body
    end = last.rindex(b"}")
    return (*before, last[:end], member + last[end:])


def without_usage(events: bytes) -> bytes:
    """Whole server-sent events without those that tell nothing but the usage."""
    if _MARK not in events:
        return events
    return b"".join(event for event in _EVENT.findall(events) if not _is_usage_only(event))


def _is_usage_only(event: bytes) -> bool:
    if _MARK not in event:
        return False
    for line in event.splitlines():
        if line.startswith(b"data:"):
            try:
                value = _USAGE_EVENT.decode(line[5:])
            except UNREADABLE:
                return False
            return value.usage is not None and value.choices == []
    return False
