"""An endpoint's answer is the same however its bytes are cut into reads."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import UpstreamError
from headrace.gateway.http.chunks import content_of_chunks
from headrace.gateway.http.message import ResponseHead
from headrace.gateway.http.plain_events import EventPipe
from headrace.gateway.upstream.connection import UpstreamConnection, UpstreamTimeouts

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class _Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self._is_aborted = False

    def is_closing(self) -> bool:
        return self._is_aborted

    def is_reading(self) -> bool:
        return True

    def writelines(self, list_of_data: object) -> None:
        """Requests go nowhere."""

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None:
        self._is_aborted = True

    def close(self) -> None:
        self._is_aborted = True


class _Client(asyncio.Transport):
    """At the end of a sink's pipe."""

    def __init__(self, sink: "_Sink") -> None:
        super().__init__()
        self._sink = sink
        self.num_writes = 0

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        content = content_of_chunks(bytes(data))
        assert content is not None
        self.num_writes += 1
        self._sink.body += content


class _Sink:
    def __init__(self, *, has_pipe: bool = True) -> None:
        self.has_pipe = has_pipe
        self.pipe = EventPipe(_Client(self))
        self.body = b""
        self.num_ends = 0
        self.error: UpstreamError | None = None

    def on_head(self, head: ResponseHead) -> None:
        assert head.is_event_stream

    def on_body(self, data: bytes) -> None:
        self.body += data

    def event_pipe(self) -> EventPipe | None:
        return self.pipe if self.has_pipe else None

    def on_read_end(self) -> None:
        """Nothing is kept."""

    def on_end(self, error: UpstreamError | None) -> None:
        self.num_ends += 1
        self.error = error


class _Heads(_Sink):
    head = ResponseHead(status=0, reason=b"")

    def on_head(self, head: ResponseHead) -> None:
        self.head = head


def _read(reads: list[bytes], *, has_pipe: bool = True) -> tuple[_Sink, list[UpstreamConnection]]:
    sink, idle = _Sink(has_pipe=has_pipe), []

    async def run() -> None:
        timeouts = UpstreamTimeouts(connect_s=1.0, first_byte_s=1.0, idle_s=1.0)
        connection = UpstreamConnection(timeouts=timeouts, name="one", on_idle=idle.append, on_lost=lambda _: None)
        connection.connection_made(_Transport())
        connection.send([b"POST / HTTP/1.1\r\n\r\n"], sink=sink)
        for read in reads:
            connection.data_received(read)

    asyncio.run(run())
    return sink, idle


def _framed(parts: list[bytes]) -> list[bytes]:
    return [*(b"%x\r\n%b\r\n" % (len(part), part) for part in parts), b"0\r\n\r\n"]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.binary(min_size=1, max_size=30), max_size=6), st.data())
def test_any_cut_gives_the_whole_body_and_a_connection_to_use_again(parts: list[bytes], data: st.DataObject) -> None:
    whole = _HEAD + b"".join(_framed(parts))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(whole) - 1), max_size=8)))
    reads = [whole[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    sink, idle = _read(reads)
    assert (sink.body, sink.num_ends, sink.error, len(idle)) == (b"".join(parts), 1, None, 1)


@pytest.mark.parametrize("has_pipe", [True, False])
def test_reads_of_one_event_each_go_past_everybody(has_pipe: bool) -> None:
    parts = [b"data: %d\n\n" % number for number in range(20)]
    sink, idle = _read([_HEAD, *_framed(parts)], has_pipe=has_pipe)
    assert (sink.body, sink.num_ends, len(idle)) == (b"".join(parts), 1, 1)
    assert sink.pipe.num_events == (20 if has_pipe else 0)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.binary(max_size=30), min_size=1, max_size=5))
def test_answers_like_the_last_one_are_as_if_parsed_anew(bodies: list[bytes]) -> None:
    answers = [b"HTTP/1.1 200 OK\r\nContent-Type: text/x\r\nContent-Length: %d\r\n\r\n%b" % (len(b), b) for b in bodies]

    async def run() -> tuple[list[tuple[ResponseHead, bytes]], int]:
        idle: list[UpstreamConnection] = []
        timeouts = UpstreamTimeouts(connect_s=1.0, first_byte_s=1.0, idle_s=1.0)
        connection = UpstreamConnection(timeouts=timeouts, name="one", on_idle=idle.append, on_lost=lambda _: None)
        connection.connection_made(_Transport())
        found = []
        for answer in answers:
            sink = _Heads()
            connection.send([b"POST / HTTP/1.1\r\n\r\n"], sink=sink)
            connection.data_received(answer)
            found.append((sink.head, sink.body))
            assert (sink.num_ends, sink.error) == (1, None)
        return found, len(idle)

    found, num_idle = asyncio.run(run())
    assert num_idle == len(bodies)
    for (head, body), expected in zip(found, bodies, strict=True):
        assert body == expected
        assert head == ResponseHead(
            status=200,
            reason=b"OK",
            headers=[(b"content-type", b"text/x"), (b"content-length", b"%d" % len(expected))],
            content_length=len(expected),
        )


def test_bytes_after_a_whole_answer_close_the_connection() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"

    async def run() -> tuple[int, bool]:
        idle: list[UpstreamConnection] = []
        timeouts = UpstreamTimeouts(connect_s=1.0, first_byte_s=1.0, idle_s=1.0)
        connection = UpstreamConnection(timeouts=timeouts, name="one", on_idle=idle.append, on_lost=lambda _: None)
        connection.connection_made(_Transport())
        for read in (answer, answer, answer + b"more"):
            connection.send([b"POST / HTTP/1.1\r\n\r\n"], sink=_Heads())
            connection.data_received(read)
        return len(idle), connection.is_usable

    assert asyncio.run(run()) == (2, False)


def test_a_broken_chunk_after_whole_ones_fails_the_answer() -> None:
    sink, idle = _read([_HEAD, b"2\r\nhi\r\n", b"2\r\nhixx\r\n"])
    assert sink.body.startswith(b"hi")
    assert (sink.num_ends, sink.error is not None, idle) == (1, True, [])
