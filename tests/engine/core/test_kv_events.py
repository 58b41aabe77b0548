"""KV events leave in vLLM's wire form, in sequence, and what a subscriber missed can be asked for again.

The structs below are vLLM's own definitions, stated again: a subscriber of vLLM decodes with them.
"""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from headrace.engine.client.core_client import CoreClient
from headrace.engine.client.host import ProcessHost
from headrace.engine.config import EngineArgs
from headrace.engine.core.kv_cache import KVCacheBlocks
from headrace.engine.kv_events.config import KVEventsConfig, parse_kv_events_config
from headrace.engine.kv_events.events import BlockContent, KVEventBatch, KVEventLog
from headrace.engine.kv_events.events import BlockStored as OurBlockStored
from headrace.engine.kv_events.publisher import KVEventPublisher
from headrace.engine.lora_request import LoRARequest
from headrace.errors import SettingsError
from headrace.prefix_hash import BlockHasher, external_hash
from headrace.testing.core_driver import CoreDriver, add_request

TIMEOUT_MS = 10_000
END = b"\xff" * 8


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list[Any]
    data_parallel_rank: int | None = None


class KVCacheEvent(msgspec.Struct, omit_defaults=True, gc=False, tag=True):
    pass


class BlockStored(KVCacheEvent):
    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None


class BlockRemoved(KVCacheEvent):
    block_hashes: list[int | bytes]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class AllBlocksCleared(KVCacheEvent):
    pass


class VllmBatch(EventBatch):
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]


def decode(payload: bytes) -> VllmBatch:
    return msgspec.msgpack.decode(payload, type=VllmBatch)


class Subscriber:
    """Hears what a publisher sends, and can ask it for what was before."""

    def __init__(self, endpoint: str, *, replay_endpoint: str | None = None, topic: str = "") -> None:
        self._context = zmq.Context()
        self._sub = self._context.socket(zmq.SUB)
        self._sub.setsockopt(zmq.RCVTIMEO, TIMEOUT_MS)
        self._sub.setsockopt_string(zmq.SUBSCRIBE, topic)
        self._sub.connect(endpoint)
        self._dealer = self._context.socket(zmq.DEALER)
        self._dealer.setsockopt(zmq.RCVTIMEO, TIMEOUT_MS)
        if replay_endpoint is not None:
            self._dealer.connect(replay_endpoint)

    def receive(self) -> tuple[str, int, VllmBatch]:
        topic, number, payload = self._sub.recv_multipart()
        return topic.decode(), int.from_bytes(number, "big"), decode(payload)

    def replay(self, first: int) -> list[tuple[str, int, VllmBatch]]:
        self._dealer.send_multipart([b"", first.to_bytes(8, "big")])
        batches = []
        while True:
            empty, topic, number, payload = self._dealer.recv_multipart()
            assert empty == b""
            if number == END:
                assert (topic, payload) == (b"", b"")
                return batches
            batches.append((topic.decode(), int.from_bytes(number, "big"), decode(payload)))

    def close(self) -> None:
        self._context.destroy(linger=0)


def batch(number: int) -> KVEventBatch:
    return KVEventBatch(ts=float(number), events=[], data_parallel_rank=0)


@pytest.fixture
def open_publisher() -> Iterator[Callable[..., KVEventPublisher]]:
    """On ports that the system chooses, with `KVEventsConfig` by keyword."""
    made: list[KVEventPublisher] = []

    def make(**config: Any) -> KVEventPublisher:
        settings = {"endpoint": "tcp://127.0.0.1:*", "replay_endpoint": "tcp://127.0.0.1:*", **config}
        made.append(KVEventPublisher(KVEventsConfig(**settings)))
        return made[-1]

    yield make
    for publisher in made:
        publisher.close()


@pytest.fixture
def subscribe() -> Iterator[Callable[..., Subscriber]]:
    """Connected; it hears what is published after its first message got through."""
    made: list[Subscriber] = []

    def make(publisher: KVEventPublisher, **options: Any) -> Subscriber:
        made.append(Subscriber(publisher.endpoint, replay_endpoint=publisher.replay_endpoint, **options))
        return made[-1]

    yield make
    for subscriber in made:
        subscriber.close()


def log_of(**options: Any) -> KVEventLog:
    return KVEventLog(block_size=2, **{"use_int_hashes": True, **options})


HASHER = BlockHasher(2, algorithm="sha256_cbor")
HASHES = HASHER.hash_prompt([1, 2, 3, 4, 5, 6])


def test_a_batch_has_the_bytes_of_vllms() -> None:
    log = log_of()
    log.stored(range(1), HASHES, BlockContent(token_ids=[1, 2]))
    log.removed(HASHES[0])
    log.cleared()
    ours = msgspec.msgpack.encode(KVEventBatch(ts=1.0, events=log.take(), data_parallel_rank=0))
    named = external_hash(HASHES[0])
    theirs = VllmBatch(
        ts=1.0,
        events=[
            BlockStored([named], None, [1, 2], 2, None, "GPU", None, extra_keys=[None], group_idx=0),
            BlockRemoved([named], "GPU", 0),
            AllBlocksCleared(),
        ],
        data_parallel_rank=0,
    )
    assert ours == msgspec.msgpack.encode(theirs)


def test_a_later_block_names_the_one_before_it() -> None:
    log = log_of()
    log.stored(range(1, 3), HASHES, BlockContent(token_ids=[1, 2, 3, 4, 5, 6]))
    (event,) = log.take()
    assert isinstance(event, OurBlockStored)
    assert event.parent_block_hash == external_hash(HASHES[0])
    assert event.token_ids == [3, 4, 5, 6]
    assert event.block_hashes == [external_hash(block_hash) for block_hash in HASHES[1:]]


def test_hashes_can_go_out_whole() -> None:
    log = log_of(use_int_hashes=False)
    log.stored(range(1, 2), HASHES, BlockContent(token_ids=[1, 2, 3, 4]))
    (event,) = decode(msgspec.msgpack.encode(KVEventBatch(ts=0.0, events=log.take()))).events
    assert (event.block_hashes, event.parent_block_hash) == ([HASHES[1]], HASHES[0])


def test_adapter_and_salt_are_told_without_their_kind_and_path() -> None:
    log = log_of()
    lora = LoRARequest("adapter", 3, "/secret/path")
    log.stored(range(2), HASHES, BlockContent(token_ids=[1, 2, 3, 4], lora=lora, cache_salt="s"))
    payload = msgspec.msgpack.encode(KVEventBatch(ts=0.0, events=log.take()))
    (event,) = decode(payload).events
    assert (event.lora_id, event.lora_name) == (3, "adapter")
    assert event.extra_keys == [("adapter", "s"), ("adapter",)]
    assert b"secret" not in payload


def test_neighbouring_removals_share_an_event() -> None:
    log = log_of()
    log.removed(HASHES[1])
    log.removed(HASHES[0])
    (event,) = log.take()
    assert event.block_hashes == [external_hash(HASHES[1]), external_hash(HASHES[0])]
    assert log.take() == []


def test_events_tell_exactly_what_the_cache_keeps() -> None:
    log = log_of()
    cache = KVCacheBlocks(5, block_size=2, events=log)
    known: set[int] = set()
    for number in range(30):
        tokens = [(number * step) % 3 for step in range(4 + number % 7)]
        hashes = HASHER.hash_prompt(tokens)
        prefix = cache.find_prefix(hashes, num_tokens=len(tokens))
        cache.open("r", prefix=prefix)
        cache.grow("r", num_tokens=len(tokens))
        cache.publish("r", hashes, num_computed_tokens=len(tokens), content=BlockContent(token_ids=tokens))
        cache.close("r")
        for event in log.take():
            if isinstance(event, OurBlockStored):
                assert event.parent_block_hash is None or event.parent_block_hash in known
                assert not known & set(event.block_hashes), "stored twice"
                known |= set(event.block_hashes)
            else:
                assert set(event.block_hashes) <= known, "removed without having been stored"
                known -= set(event.block_hashes)
        assert known == {external_hash(h) for h in cache._block_of}


@pytest.mark.integration
def test_batches_arrive_in_sequence_under_their_topic(
    open_publisher: Callable[..., KVEventPublisher], subscribe: Callable[..., Subscriber]
) -> None:
    publisher = open_publisher(topic="kv@pod@model")
    subscriber = subscribe(publisher, topic="kv@")
    first = publish_until_heard(publisher, subscriber)
    for number in range(first + 1, first + 6):
        publisher.publish(batch(number))
    heard = [subscriber.receive() for _ in range(5)]
    assert [(topic, number) for topic, number, _ in heard] == [("kv@pod@model", first + 1 + i) for i in range(5)]
    assert [received.ts for _, number, received in heard] == [float(number) for _, number, _ in heard]


@pytest.mark.integration
def test_a_replay_brings_what_came_from_a_number_on(
    open_publisher: Callable[..., KVEventPublisher], subscribe: Callable[..., Subscriber]
) -> None:
    publisher = open_publisher(topic="t", buffer_steps=6)
    for number in range(10):
        publisher.publish(batch(number))
    subscriber = subscribe(publisher)
    assert [(topic, number) for topic, number, _ in subscriber.replay(7)] == [("t", 7), ("t", 8), ("t", 9)]
    assert [number for _, number, _ in subscriber.replay(0)] == [4, 5, 6, 7, 8, 9]
    assert subscriber.replay(10) == []
    assert publisher.statistics().num_replayed == 9


@pytest.mark.integration
def test_what_finds_no_place_in_the_queue_is_a_gap_that_a_replay_fills(
    open_publisher: Callable[..., KVEventPublisher], subscribe: Callable[..., Subscriber]
) -> None:
    publisher = open_publisher(max_queue_size=1)
    subscriber = subscribe(publisher)
    num_batches = 0
    while publisher.statistics().num_unsent == 0:
        publisher.publish(batch(num_batches))
        num_batches += 1
    assert [number for _, number, _ in subscriber.replay(0)] == list(range(num_batches))


@pytest.mark.integration
def test_a_question_that_makes_no_sense_is_passed_over(
    open_publisher: Callable[..., KVEventPublisher], subscribe: Callable[..., Subscriber]
) -> None:
    publisher = open_publisher()
    subscriber = subscribe(publisher)
    for question in ([b"x"], [b"", b"short"], [b"", b"12345678", b"more"]):
        subscriber._dealer.send_multipart(question)
    assert subscriber.replay(0) == []


@pytest.mark.integration
def test_the_systems_choice_of_a_port_is_told(open_publisher: Callable[..., KVEventPublisher]) -> None:
    publisher = open_publisher(endpoint="tcp://*:0", replay_endpoint=None)
    assert publisher.endpoint.startswith("tcp://0.0.0.0:")
    assert not publisher.endpoint.endswith((":0", "*"))
    assert publisher.replay_endpoint is None


@pytest.mark.integration
def test_a_port_that_is_taken_stops_the_start_by_name(open_publisher: Callable[..., KVEventPublisher]) -> None:
    taken = open_publisher(replay_endpoint=None).endpoint
    with pytest.raises(SettingsError, match=taken):
        open_publisher(endpoint="tcp://*:0", replay_endpoint=taken)


@pytest.mark.integration
def test_no_socket_file_is_left(tmp_path: Path, open_publisher: Callable[..., KVEventPublisher]) -> None:
    publisher = open_publisher(endpoint=f"ipc://{tmp_path}/events", replay_endpoint=f"ipc://{tmp_path}/replay")
    assert {path.name for path in tmp_path.iterdir()} == {"events", "replay"}
    publisher.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.integration
def test_closing_sends_what_waits_and_leaves_no_thread(
    open_publisher: Callable[..., KVEventPublisher], subscribe: Callable[..., Subscriber]
) -> None:
    publisher = open_publisher()
    subscriber = subscribe(publisher)
    first = publish_until_heard(publisher, subscriber)
    for number in range(first + 1, first + 51):
        publisher.publish(batch(number))
    publisher.close()
    assert not publisher._thread.is_alive()
    assert [subscriber.receive()[1] for _ in range(50)][-1] == first + 50
    publisher.close()


@pytest.mark.integration
def test_an_engine_core_publishes_what_its_cache_stores_evicts_and_clears(
    tiny_model_dir: Path, make_driver: Callable[..., CoreDriver]
) -> None:
    driver = make_driver(
        tiny_model_dir,
        block_size=4,
        max_model_len=32,
        kv_cache_memory_bytes=8 * 4 * 512,
        kv_events=True,
        kv_events_endpoint="tcp://127.0.0.1:*",
        kv_events_replay_endpoint="tcp://127.0.0.1:*",
        prefix_caching_hash_algo="sha256_cbor",
    )
    ready = driver.core.ready(load_s=0.0)
    assert ready.kv_events_endpoint is not None
    subscriber = Subscriber(ready.kv_events_endpoint, replay_endpoint=ready.kv_events_replay_endpoint)
    prompts = [[number, *range(10, 27)] for number in range(4)]
    for number, prompt in enumerate(prompts):
        driver.add(add_request(str(number), prompt, max_tokens=2))
    driver.run()
    assert driver.core.reset_prefix_cache()
    events = [event for _, _, received in subscriber.replay(0) for event in received.events]
    subscriber.close()
    assert driver.core.statistics().num_kv_event_batches > 1
    driver.core.close()
    hasher = BlockHasher(4, algorithm="sha256_cbor")
    for prompt in prompts:
        stored = next(e for e in events if isinstance(e, BlockStored) and e.token_ids[:4] == prompt[:4])
        assert stored.block_hashes[0] == external_hash(hasher.hash_prompt(prompt)[0])
    assert any(isinstance(event, BlockRemoved) for event in events)
    assert isinstance(events[-1], AllBlocksCleared)


@pytest.mark.integration
async def test_a_cores_process_tells_where_it_publishes_and_is_heard_there(tiny_model_dir: Path) -> None:
    args = EngineArgs(
        model=str(tiny_model_dir),
        cpu_threads=1,
        kv_events_config='{"enable_kv_cache_events": true, "endpoint": "tcp://*:0", "replay_endpoint": "tcp://*:0"}',
    )
    client = CoreClient(host=ProcessHost(), hang_timeout_s=60.0, on_step=lambda _: None, on_death=lambda _: None)
    try:
        await client.start(msgspec.json.encode(args.create_engine_config()))
        ready = await client.wait_ready(timeout_s=50.0)
        endpoints = [
            str(each).replace("0.0.0.0", "127.0.0.1")
            for each in (ready.kv_events_endpoint, ready.kv_events_replay_endpoint)
        ]
        subscriber = Subscriber(endpoints[0], replay_endpoint=endpoints[1])
        await client.add(add_request("a", list(range(5, 40)), max_tokens=1))
        while client.statistics.num_kv_event_batches == 0:
            await asyncio.sleep(0.01)
        ((_, number, received),) = subscriber.replay(0)
        subscriber.close()
        assert number == 0
        assert [event.token_ids for event in received.events] == [list(range(5, 37))]
    finally:
        await client.aclose(timeout_s=5.0)


def test_events_can_be_made_and_dropped(tiny_model_dir: Path, make_driver: Callable[..., CoreDriver]) -> None:
    driver = make_driver(tiny_model_dir, kv_events=True, kv_events_publisher="null")
    driver.add(add_request("a", list(range(5, 40)), max_tokens=1))
    driver.run()
    assert driver.core.ready(load_s=0.0).kv_events_endpoint is None
    log = driver.core._events.log
    assert log is not None
    assert log.take() == []


def test_vllms_json_is_understood() -> None:
    text = '{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:6000", "topic": "t", "hwm": 5}'
    config = EngineArgs(model="m", kv_events_config=text)._kv_events_config()
    assert config == KVEventsConfig(endpoint="tcp://*:6000", topic="t", hwm=5)
    assert parse_kv_events_config("{}") is None


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"kv_events_config": '{"enable": true}'}, "enable"),
        ({"kv_events_config": "yes"}, "yes"),
        ({"kv_events": True, "kv_events_config": "{}"}, "both given"),
        ({"kv_events": True, "kv_events_endpoint": "5557"}, "5557"),
        ({"kv_events": True, "kv_events_buffer_steps": 0}, "buffer_steps is 0"),
        ({"kv_events": True, "kv_events_publisher": "kafka"}, "kafka"),
        ({"kv_events": True, "enable_prefix_caching": False}, "enable_prefix_caching"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(SettingsError, match=text) as caught:
        EngineArgs(model="m", **settings)
    assert str(caught.value.param).startswith("kv_events")


def test_each_rank_has_its_own_addresses() -> None:
    config = KVEventsConfig(endpoint="tcp://*:5557", replay_endpoint="ipc:///run/replay").for_rank(2)
    assert (config.endpoint, config.replay_endpoint) == ("tcp://*:5559", "ipc:///run/replay_dp2")
    assert config.data_parallel_rank == 2
    assert KVEventsConfig(endpoint="tcp://*:0").for_rank(1).endpoint == "tcp://*:0"


def publish_until_heard(publisher: KVEventPublisher, subscriber: Subscriber) -> int:
    """ZMQ connects in its own time; the number of the last batch, which was heard."""
    number = publisher.statistics().num_batches
    while True:
        publisher.publish(batch(number))
        if subscriber._sub.poll(timeout=20):
            heard = subscriber.receive()[1]
            while heard < number:
                heard = subscriber.receive()[1]
            return number
        number += 1
