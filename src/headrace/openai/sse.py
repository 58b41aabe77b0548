"""Server-sent events as the OpenAI API uses them: only `data` fields matter, and `[DONE]` ends a stream.

A pure codec: bytes in, event data out. It knows neither JSON nor sockets.
"""

import re

from headrace.errors import UpstreamProtocolError

DONE_DATA = b"[DONE]"
"""The data of the event that ends a complete stream."""

DONE = b"data: [DONE]\n\n"
"""That event, encoded."""

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_DEFAULT_MAX_EVENT_BYTES = 4 << 20  # a chunk has hundreds of bytes; a late client's whole answer in one has megabytes


def encode_event(data: bytes, *, name: str | None = None) -> bytes:
    """One event that carries `data`; its newlines become lines of the event. `name` is for APIs whose events have one.

    Raises ValueError for a carriage return, which the format cannot carry.
    """
    if b"\r" in data:
        raise ValueError("a server-sent event cannot carry a carriage return")
    event = b"data: " + data.replace(b"\n", b"\ndata: ") + b"\n\n"
    return event if name is None else b"event: %s\n%s" % (name.encode(), event)


class SseDecoder:
    """Finds the events in a byte stream that is cut anywhere.

    Lines end with LF, CRLF or CR. Comments and the fields `event`, `id` and `retry` are skipped, and so is an event
    without data and one that the stream's end cuts off. Memory is bounded by `max_event_bytes`.
    """

    def __init__(self, *, max_event_bytes: int = _DEFAULT_MAX_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        self._line = bytearray()
        self._data: list[bytes] = []
        self._num_data_bytes = 0
        self._is_first_line = True
        self._skips_line_feed = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of every event that `chunk` completes, in order.

        Raises UpstreamProtocolError when an event grows beyond the bound; the decoder is of no use after that.
        """
        if not chunk:
            return []
        if self._skips_line_feed and chunk.startswith(b"\n"):
            chunk = chunk[1:]
        self._skips_line_feed = chunk.endswith(b"\r")  # the next chunk may bring the line feed of this CRLF
        *line_ends, rest = _LINE_END.split(chunk)
        events: list[bytes] = []
        for line_end in line_ends:
            self._line += line_end
            self._end_line(events)
        self._line += rest
        self._check_bound()
        return events

    def _end_line(self, events: list[bytes]) -> None:
        self._check_bound()
        line = bytes(self._line)
        self._line.clear()
        if self._is_first_line:
            self._is_first_line = False
            line = line.removeprefix(_BYTE_ORDER_MARK)
        if not line:
            self._end_event(events)
        elif line == b"data" or line.startswith(b"data:"):
            value = line[5:].removeprefix(b" ")
            self._data.append(value)
            self._num_data_bytes += len(value) + 1

    def _end_event(self, events: list[bytes]) -> None:
        if self._data:
            events.append(b"\n".join(self._data))
            self._data.clear()
            self._num_data_bytes = 0

    def _check_bound(self) -> None:
        num_bytes = self._num_data_bytes + len(self._line)
        if num_bytes > self._max_event_bytes:
            raise UpstreamProtocolError(
                f"a server-sent event has more than {self._max_event_bytes} bytes ({num_bytes} so far)"
            )

    def __repr__(self) -> str:
        return f"SseDecoder(num_buffered_bytes={self._num_data_bytes + len(self._line)})"
