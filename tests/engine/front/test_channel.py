"""Frames arrive whole, in order and bounded, whatever the socket does to them."""

import asyncio
import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.wire.channel import AsyncChannel, BlockingChannel, ChannelClosedError, FrameSplitter, encode_frame
from headrace.engine.wire.messages import Abort, CallResult, CoreStatistics, FromCore, Start, StepOutputs
from headrace.errors import EngineError, InvalidRequestError


@given(
    payloads=st.lists(st.binary(max_size=300), max_size=8),
    sizes=st.lists(st.integers(1, 64), min_size=1, max_size=8),
)
def test_frames_are_the_same_however_the_stream_is_chunked(payloads: list[bytes], sizes: list[int]) -> None:
    stream = b"".join(encode_frame(Start(payload)) for payload in payloads)
    splitter = FrameSplitter()
    frames: list[bytearray] = []
    position = index = 0
    while position < len(stream):
        size = sizes[index % len(sizes)]
        frames += splitter.feed(stream[position : position + size])
        position, index = position + size, index + 1
    assert frames == [encode_frame(Start(payload))[4:] for payload in payloads]


def test_a_frame_that_is_too_long_is_refused_at_both_ends() -> None:
    with pytest.raises(EngineError, match="longer than the 10"):
        encode_frame(Start(b"x" * 100), max_frame_bytes=10)
    with pytest.raises(EngineError, match="longer than the 10"):
        list(FrameSplitter(max_frame_bytes=10).feed(encode_frame(Start(b"x" * 100))))


def test_a_value_that_cannot_be_sent_is_the_requests_fault() -> None:
    with pytest.raises(InvalidRequestError, match="surrogates"):
        encode_frame(Abort(("\ud800",)))


async def test_the_core_says_so_when_it_is_sent_what_is_no_message() -> None:
    front, core = await open_pair()
    await front.channel.send(Abort(("a",)))
    front.channel.post(Abort((5,)))  # type: ignore[arg-type]
    await asyncio.to_thread(wait_for_messages, core, 1)
    with pytest.raises(EngineError, match="no message: Expected `str`, got `int`"):
        await asyncio.to_thread(core.receive, timeout_s=5.0)
    core.close()
    await front.channel.aclose()


class Front:
    """The asyncio end, and what it was told."""

    def __init__(self) -> None:
        self.received: asyncio.Queue[FromCore] = asyncio.Queue()
        self.closed: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        self.channel = AsyncChannel(on_message=self.received.put_nowait, on_closed=self.closed.set_result)


async def open_pair() -> tuple[Front, BlockingChannel]:
    ours, theirs = socket.socketpair()
    front = Front()
    await front.channel.open(ours)
    return front, BlockingChannel(theirs)


async def test_messages_cross_both_ways() -> None:
    front, core = await open_pair()
    await front.channel.send(Abort(("a",)))
    assert core.receive(timeout_s=5.0) == [Abort(("a",))]
    core.send(CallResult(call_id=3, result=True))
    assert await front.received.get() == CallResult(call_id=3, result=True)
    core.close()
    assert await front.closed is None
    await front.channel.aclose()


async def test_the_core_sees_all_messages_and_then_the_end() -> None:
    front, core = await open_pair()
    for number in range(3):
        front.channel.post(Abort((str(number),)))
    await asyncio.to_thread(wait_for_messages, core, 3)
    await front.channel.aclose()
    with pytest.raises(ChannelClosedError):
        await asyncio.to_thread(core.receive, timeout_s=5.0)
    with pytest.raises(ChannelClosedError):  # and it stays so
        core.receive(timeout_s=0.0)
    with pytest.raises(ChannelClosedError):
        core.send(CallResult(call_id=0))
    core.close()


def wait_for_messages(core: BlockingChannel, count: int) -> None:
    received: list[object] = []
    while len(received) < count:
        received += core.receive(timeout_s=5.0)


async def test_receiving_without_waiting_returns_at_once() -> None:
    front, core = await open_pair()
    assert core.receive(timeout_s=0.0) == []
    core.close()
    await front.channel.aclose()


async def test_a_sender_waits_while_the_other_end_does_not_read() -> None:
    ours, theirs = socket.socketpair()
    front = Front()
    await front.channel.open(ours)
    front.channel.post(Start(b"x" * 8_000_000))
    sending = asyncio.ensure_future(front.channel.send(Abort(("a",))))
    await asyncio.sleep(0)
    assert not sending.done()
    core = BlockingChannel(theirs)
    await sending
    await asyncio.to_thread(wait_for_messages, core, 2)
    core.close()
    await front.channel.aclose()


async def test_a_sender_that_waits_learns_that_the_channel_closed() -> None:
    ours, theirs = socket.socketpair()
    front = Front()
    await front.channel.open(ours)
    front.channel.post(Start(b"x" * 8_000_000))
    sending = asyncio.ensure_future(front.channel.send(Abort(("a",))))
    await asyncio.sleep(0)
    theirs.close()
    with pytest.raises(ChannelClosedError):
        await sending
    await front.channel.aclose()


async def test_a_message_that_cannot_be_handled_closes_the_channel_with_the_reason() -> None:
    front, core = await open_pair()
    core._sock.sendall(b"\x01\x00\x00\x00\xc1")
    assert "malformed" in str(await front.closed).lower()
    core.close()


async def test_closing_ends_the_reader_even_when_its_inbox_is_full() -> None:
    front, core = await open_pair()
    for _ in range(5000):
        front.channel.post(Abort(("a",)))
    await asyncio.to_thread(core.close)
    assert not any(thread.name == "headrace-core-reader" for thread in threading.enumerate())
    await front.channel.aclose()


async def test_statistics_cross_with_the_outputs() -> None:
    front, core = await open_pair()
    outputs = StepOutputs(deltas=(), statistics=CoreStatistics(num_running=2, num_blocks=8, num_free_blocks=3))
    core.send(outputs)
    assert await front.received.get() == outputs
    core.close()
    await front.channel.aclose()
