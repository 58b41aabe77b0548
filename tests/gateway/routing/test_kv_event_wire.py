import contextlib
import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import SettingsError, UpstreamError, UpstreamProtocolError
from headrace.gateway.kv_events.sequence import Sequence, Verdict
from headrace.gateway.kv_events.sources import EventSource, parse_sources, reachable, read_sources
from headrace.gateway.kv_events.wire import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    ask_replay,
    read_batch,
    read_message,
    read_replayed,
)

STORED = BlockStored([7, 8], None, [1, 2, 3, 4], 2, lora_id=None, medium="GPU")
MAPS = [
    {
        "type": "BlockStored",
        "block_hashes": [7, 8],
        "parent_block_hash": None,
        "token_ids": [1, 2, 3, 4],
        "block_size": 2,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "session_id": "new fields do no harm",
    },
    {"type": "BlockRemoved", "block_hashes": [7], "medium": "GPU"},
    {"type": "AllBlocksCleared"},
]
ARRAYS = [
    ["BlockStored", [7, 8], None, [1, 2, 3, 4], 2, None, "GPU", None, None, "more"],
    ["BlockRemoved", [7], "GPU"],
    ["AllBlocksCleared"],
]


@pytest.mark.parametrize("events", [MAPS, ARRAYS], ids=["maps", "arrays"])
@pytest.mark.parametrize("rest", [[], [0], [None]])
def test_both_forms_of_events_are_read(events: list[object], rest: list[object]) -> None:
    batch = read_batch(msgspec.msgpack.encode([1.5, events, *rest]))

    assert batch.time_s == 1.5
    assert batch.events == [STORED, BlockRemoved([7], "GPU"), AllBlocksCleared()]


def test_sglangs_short_events_and_whole_digests_are_read() -> None:
    payload = msgspec.msgpack.encode([1.0, [["BlockStored", [b"digest", -5], b"parent", [1, 2], 1, None]]])

    assert read_batch(payload).events == [BlockStored([b"digest", -5], b"parent", [1, 2], 1)]


def test_events_of_unknown_kinds_are_counted_and_left_out() -> None:
    payload = msgspec.msgpack.encode([1.0, [{"type": "BlockMoved", "to": 1}, ["BlockMoved", 1], MAPS[2]]])
    batch = read_batch(payload)

    assert (batch.events, batch.num_unknown) == ([AllBlocksCleared()], 2)


@given(st.binary(max_size=60) | st.lists(st.binary(max_size=9), max_size=5).map(msgspec.msgpack.encode))
def test_any_bytes_give_a_batch_or_our_error(payload: bytes) -> None:
    with contextlib.suppress(UpstreamProtocolError):
        assert read_batch(payload).num_unknown >= 0


@given(st.lists(st.binary(max_size=9), max_size=5))
def test_any_frames_give_a_message_or_our_error(frames: list[bytes]) -> None:
    for read in (read_message, read_replayed):
        with contextlib.suppress(UpstreamProtocolError):
            message = read(frames)
            assert message is None or message.number >= 0


def test_a_replay_is_read_with_and_without_its_topic() -> None:
    number = struct.pack(">Q", 4)
    with_topic, without = read_replayed([b"", b"topic", number, b"x"]), read_replayed([b"", number, b"x"])

    assert with_topic == without
    assert with_topic is not None
    assert (with_topic.number, with_topic.payload) == (4, b"x")
    assert read_replayed([b"", b"", b"\xff" * 8, b""]) is None
    assert ask_replay(4) == [b"", number]


# -- sequence numbers


def applied(*batches: tuple[int, float]) -> Sequence:
    sequence = Sequence()
    for number, time_s in batches:
        sequence.note_applied(number, time_s)
    return sequence


@pytest.mark.parametrize(
    ("number", "time_s", "verdict"),
    [
        (4, 9.0, Verdict.APPLY),
        (3, 8.0, Verdict.SKIP),
        (1, 6.0, Verdict.SKIP),
        (6, 9.0, Verdict.GAP),
        (0, 9.0, Verdict.RESTART),
        (3, 8.5, Verdict.RESTART),
    ],
)
def test_a_live_batch_is_judged_by_its_number_and_time(number: int, time_s: float, verdict: Verdict) -> None:
    assert applied((3, 8.0)).judge(number, time_s) is verdict


def test_after_a_restart_the_sequence_begins_at_0() -> None:
    sequence = applied((3, 8.0))
    sequence.judge(2, 9.0)

    assert sequence.next_number == 0
    assert sequence.judge(2, 9.0) is Verdict.GAP


@pytest.mark.parametrize(
    ("number", "time_s", "is_first", "verdict"),
    [
        (3, 8.0, True, Verdict.SKIP),
        (3, 1.0, True, Verdict.RESTART),
        (4, 9.0, False, Verdict.APPLY),
        (7, 9.0, True, Verdict.GAP),
        (2, 9.0, False, Verdict.SKIP),
    ],
)
def test_a_replay_shows_whether_the_engine_is_the_same(
    number: int, time_s: float, is_first: bool, verdict: Verdict
) -> None:
    assert applied((3, 8.0)).judge_replayed(number, time_s, is_first=is_first) is verdict


@given(st.lists(st.integers(0, 30), min_size=1))
def test_whatever_the_order_no_batch_is_applied_twice_or_out_of_order(numbers: list[int]) -> None:
    sequence, seen = Sequence(), []
    for number in numbers:
        if sequence.judge(number, float(number)) in {Verdict.APPLY, Verdict.GAP}:
            sequence.note_applied(number, float(number))
            seen.append(number)

    assert seen == sorted(set(seen))


# -- sources


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("tcp://*:5557", "tcp://10.0.0.7:5557"),
        ("tcp://0.0.0.0:5557", "tcp://10.0.0.7:5557"),
        ("tcp://[::]:5557", "tcp://10.0.0.7:5557"),
        ("tcp://engine.example:5557", "tcp://engine.example:5557"),
        ("ipc:///run/events", "ipc:///run/events"),
    ],
)
def test_a_bound_address_is_reached_at_its_endpoints_host(address: str, expected: str) -> None:
    assert reachable(address, host="10.0.0.7") == expected


@pytest.mark.parametrize("address", ["inproc://events", "tcp://*:0", "tcp://*", "http://a:1"])
def test_an_address_that_nobody_can_reach_is_refused_by_name(address: str) -> None:
    with pytest.raises(UpstreamError, match="cannot be reached"):
        reachable(address, host="h")


def test_what_an_endpoint_tells_is_read_by_rank() -> None:
    body = (
        b'{"1": {"endpoint": "tcp://*:5558", "publisher": "zmq", "new": 1},'
        b' "0": {"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:6000", "topic": "kv"},'
        b' "2": {"endpoint": "tcp://*:5559", "publisher": "null"}}'
    )

    assert read_sources(body, host="h") == (
        EventSource("tcp://h:5557", "tcp://h:6000", "kv"),
        EventSource("tcp://h:5558"),
    )
    assert read_sources(b"{}", host="h") == ()


def test_configured_sources_are_read_by_endpoint() -> None:
    entries = ("http://a:8000/=tcp://a:1,tcp://a:2", "http://a:8000=tcp://a:3", "http://b=ipc:///x")

    assert parse_sources(entries) == {
        "http://a:8000": (EventSource("tcp://a:1", "tcp://a:2"), EventSource("tcp://a:3")),
        "http://b": (EventSource("ipc:///x"),),
    }


@pytest.mark.parametrize("entry", ["tcp://a:1", "http://a=", "http://a=tcp://a", "http://a=tcp://a:1,x", "a=tcp://a:1"])
def test_a_bad_source_is_refused_with_its_value(entry: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_sources((entry,))

    assert caught.value.param == "kv_event_source"
