"""The core's side of the channel, driven by frames on a bare socket."""

import socket
import threading
from collections import deque
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest

from headrace.engine import SamplingParams
from headrace.engine.core.loop import CoreLoop, serve_core
from headrace.engine.wire.channel import BlockingChannel, FrameSplitter, encode_frame
from headrace.engine.wire.messages import (
    Abort,
    AddRequest,
    Call,
    CallResult,
    Failed,
    FromCore,
    Ready,
    Shutdown,
    Start,
    StepOutputs,
    ToCore,
)
from headrace.errors import SettingsError
from headrace.testing.fake_core import FakeCore, fake_engine_config

CONFIG = Start(msgspec.json.encode(fake_engine_config()))


class Front:
    """A front end of blocking calls."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._sock.settimeout(10.0)
        self._frames = FrameSplitter()
        self._received: deque[FromCore] = deque()

    def send(self, *messages: ToCore) -> None:
        self._sock.sendall(b"".join(encode_frame(message) for message in messages))

    def receive(self) -> FromCore:
        while not self._received:
            chunk = self._sock.recv(65536)
            if not chunk:
                raise EOFError
            self._received += [msgspec.msgpack.decode(frame, type=FromCore) for frame in self._frames.feed(chunk)]
        return self._received.popleft()

    def receive_until(self, kind: type) -> list[FromCore]:
        messages = [self.receive()]
        while not isinstance(messages[-1], kind):
            messages.append(self.receive())
        return messages


@pytest.fixture
def core() -> FakeCore:
    return FakeCore()


@pytest.fixture
def front(core: FakeCore) -> Iterator[Front]:
    """Of a core that has started."""
    ours, theirs = socket.socketpair()
    thread = threading.Thread(
        target=serve_core, args=(BlockingChannel(theirs),), kwargs={"build_core": lambda _config: core}
    )
    thread.start()
    with ours:
        front = Front(ours)
        front.send(CONFIG)
        assert isinstance(front.receive(), Ready)
        yield front
        core.release()
    thread.join(timeout=10.0)
    assert not thread.is_alive()  # it ended because the front end closed


def request(request_id: str, prompt: list[int], *, max_tokens: int) -> AddRequest:
    return AddRequest(
        request_id=request_id,
        prompt=np.array(prompt, dtype=np.uint32).tobytes(),
        sampling_params=SamplingParams(),
        max_tokens=max_tokens,
        stop_token_ids=(),
        arrival_time=0.0,
    )


def test_a_request_is_stepped_to_its_end(front: Front) -> None:
    front.send(request("r", [5, 6], max_tokens=3))
    begins, *deltas = [delta for _ in range(4) for delta in front.receive().deltas]
    assert begins.is_running
    assert [delta.new_token_ids for delta in deltas] == [(5,), (6,), (5,)]
    assert [delta.finish_reason for delta in deltas] == [None, None, "length"]


def test_the_answer_to_an_abort_follows_the_outputs_that_show_the_free_blocks(front: Front, core: FakeCore) -> None:
    core.allow_steps(0)
    front.send(request("r", [5], max_tokens=3), Abort(("r", "unknown"), call_id=1))
    *before, answer = front.receive_until(CallResult)
    assert answer == CallResult(call_id=1)
    assert [(delta.request_id, delta.finish_reason) for delta in before[-1].deltas] == [("r", "abort")]
    assert before[-1].statistics.num_free_blocks == core.num_blocks


def test_an_abort_is_heeded_before_the_next_step(front: Front, core: FakeCore) -> None:
    core.hang()
    front.send(request("r", [5], max_tokens=3000))
    front.send(Abort(("r",), call_id=1))
    core.release()
    messages = front.receive_until(CallResult)
    assert sum(len(message.deltas) for message in messages[:-1]) <= 3


def test_only_named_methods_can_be_called(front: Front) -> None:
    front.send(Call(call_id=1, method="reset_prefix_cache"), Call(call_id=2, method="__init__"))
    assert front.receive_until(CallResult)[-1] == CallResult(call_id=1, result=True)
    refused = front.receive_until(CallResult)[-1]
    assert (refused.call_id, refused.error.message) == (2, "the core has no method '__init__' to be called")


def test_a_check_that_fails_is_answered_and_the_core_goes_on(front: Front, core: FakeCore) -> None:
    core.num_blocks = -1
    front.send(Call(call_id=1, method="check_integrity"), Call(call_id=2, method="reset_prefix_cache"))
    assert "more blocks are held" in front.receive_until(CallResult)[-1].error.message
    assert front.receive_until(CallResult)[-1].result is True


def test_shutdown_closes_the_channel(front: Front) -> None:
    front.send(Shutdown())
    with pytest.raises(EOFError):
        front.receive_until(Ready)


def test_a_failing_core_sends_its_error_last(front: Front, core: FakeCore) -> None:
    core.fail(ZeroDivisionError("by zero"))
    front.send(request("r", [5], max_tokens=3))
    failed = front.receive_until(Failed)[-1]
    assert failed.message == "ZeroDivisionError: by zero"
    assert "in step" in failed.traceback
    with pytest.raises(EOFError):
        front.receive()


def test_a_core_that_a_wrong_setting_stops_tells_it_without_a_traceback() -> None:
    def refuse(_: object) -> FakeCore:
        raise SettingsError("device is 'cuda', but there is none", param="device")

    ours, theirs = socket.socketpair()
    with ours:
        front = Front(ours)
        front.send(CONFIG)
        assert serve_core(BlockingChannel(theirs), build_core=refuse) is False
        failed = front.receive()
    assert (failed.message, failed.traceback) == ("device is 'cuda', but there is none", "")


def test_what_is_no_start_is_refused_first() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        front = Front(ours)
        front.send(Shutdown())
        assert serve_core(BlockingChannel(theirs), build_core=FakeCore) is False
        assert "expected one Start" in front.receive().message


def test_an_idle_core_shows_that_it_lives() -> None:
    ours, theirs = socket.socketpair()
    channel = BlockingChannel(theirs)
    loop = CoreLoop(channel, FakeCore(), heartbeat_s=0.01)
    thread = threading.Thread(target=loop.run)
    thread.start()
    with ours:
        front = Front(ours)
        beats = [front.receive() for _ in range(3)]
        front.send(Shutdown())
        thread.join(timeout=10.0)
    channel.close()
    assert beats == [StepOutputs(deltas=(), statistics=FakeCore().statistics())] * 3
