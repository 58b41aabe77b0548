"""A subscription over real sockets, with a publisher that loses, repeats and restarts at will."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import msgspec
import pytest
import zmq
import zmq.asyncio

from headrace.gateway.kv_events.apply import EventSink
from headrace.gateway.kv_events.sources import EventSource
from headrace.gateway.kv_events.subscription import Subscription
from headrace.gateway.kv_events.wire import EventBatch
from headrace.gateway.prefix_index import ChainHashers, PrefixIndex
from headrace.tokenization.tokenizer import pack_token_ids

pytestmark = pytest.mark.integration
END = b"\xff" * 8


class Publisher:
    """vLLM's publisher, but each batch is published, and kept for replays, as the test says. `time_s` is its clock."""

    def __init__(self, context: zmq.asyncio.Context) -> None:
        self._context = context
        self.time_s = 1.0
        self._batches: list[bytes] = []
        self.num_dropped = 0
        """Of the first batches: they cannot be replayed any more."""
        self._publishing = context.socket(zmq.XPUB)
        self._publishing.setsockopt(zmq.XPUB_VERBOSE, 1)
        self._replaying = context.socket(zmq.ROUTER)
        for socket in (self._publishing, self._replaying):
            socket.bind("tcp://127.0.0.1:*")
        self.source = EventSource(
            self._publishing.getsockopt_string(zmq.LAST_ENDPOINT), self._replaying.getsockopt_string(zmq.LAST_ENDPOINT)
        )

    async def wait_for_subscriber(self) -> None:
        assert (await self._publishing.recv())[:1] == b"\x01"

    def make(self, *events: object) -> int:
        """A batch that nobody is told of yet; its number."""
        self.time_s += 1
        self._batches.append(msgspec.msgpack.encode([self.time_s, events, 0]))
        return len(self._batches) - 1

    async def send(self, number: int) -> None:
        await self._publishing.send_multipart([b"", number.to_bytes(8, "big"), self._batches[number]])

    async def publish(self, *events: object) -> None:
        await self.send(self.make(*events))

    def restart(self) -> None:
        self._batches.clear()

    async def answer_replays(self) -> None:
        while True:
            client, _, first = await self._replaying.recv_multipart()
            for number in range(max(int.from_bytes(first, "big"), self.num_dropped), len(self._batches)):
                await self._replaying.send_multipart(
                    [client, b"", b"", number.to_bytes(8, "big"), self._batches[number]]
                )
            await self._replaying.send_multipart([client, b"", b"", END, b""])

    def close(self) -> None:
        self._publishing.close(linger=0)
        self._replaying.close(linger=0)


class WatchedSink(EventSink):
    """Wakes who waits for a change."""

    def __init__(self) -> None:
        self.index = PrefixIndex(max_bytes=1 << 20)
        self.changed = asyncio.Event()
        self.block_size = 0
        self.hashers = ChainHashers()
        super().__init__(self.index, self.hashers, self.index.add_holder("engine"), on_block_size=self._note)

    def _note(self, block_size: int) -> None:
        self.block_size = block_size

    def apply(self, batch: EventBatch) -> None:
        super().apply(batch)
        self.changed.set()

    def clear(self) -> None:
        super().clear()
        self.changed.set()

    def num_held(self, tokens: Sequence[int], *, adapter: str = "", salt: str | None = None) -> int:
        chain = self.hashers.of(2).chain(pack_token_ids(tokens), adapter=adapter, salt=salt)
        return self.index.held(self.index.follow(chain), self.holder, now=0.0).num_stored

    async def wait_for(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not is_so():
                self.changed.clear()
                await self.changed.wait()


def stored(*names: int, tokens: Sequence[int], parent: int | None = None, **others: object) -> dict[str, object]:
    fields = {"block_hashes": names, "parent_block_hash": parent, "token_ids": tokens, "block_size": 2}
    return {"type": "BlockStored", "lora_id": None, "medium": "GPU", "lora_name": None} | fields | others


def removed(*names: int, medium: str = "GPU") -> dict[str, object]:
    return {"type": "BlockRemoved", "block_hashes": names, "medium": medium}


@asynccontextmanager
async def following(
    *, quiet_s: float = 3600.0, is_replayed: bool = True, first: Sequence[object] = ()
) -> AsyncIterator[tuple[Publisher, WatchedSink, Subscription]]:
    """A publisher with the event `first` in its past, and a subscription that follows it."""
    with zmq.asyncio.Context() as context:
        publisher, sink = Publisher(context), WatchedSink()
        if first:
            publisher.make(*first)
        source = publisher.source if is_replayed else EventSource(publisher.source.publish)
        subscription = Subscription(source, sink, quiet_s=quiet_s)
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(subscription.run(context)), loop.create_task(publisher.answer_replays())]
        try:
            await publisher.wait_for_subscriber()
            yield publisher, sink, subscription
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            publisher.close()


async def test_what_was_published_before_and_after_the_connection_is_known() -> None:
    async with following(first=[stored(1, 2, tokens=[1, 2, 3, 4])]) as (publisher, sink, subscription):
        await sink.wait_for(lambda: sink.num_held([1, 2, 3, 4]) == 2)
        await publisher.publish(stored(3, tokens=[5, 6], parent=2))
        await sink.wait_for(lambda: sink.num_held([1, 2, 3, 4, 5, 6]) == 3)
        await publisher.publish(removed(3, 2))
        await sink.wait_for(lambda: sink.num_held([1, 2, 3, 4, 5, 6]) == 1)
        await publisher.publish({"type": "AllBlocksCleared"})
        await sink.wait_for(lambda: sink.num_held([1, 2]) == 0)

        statistics = subscription.statistics()
    assert (statistics.num_batches, statistics.num_replayed, statistics.num_gaps) == (4, 1, 0)
    assert sink.block_size == 2


async def test_a_gap_is_replayed_and_repeated_batches_are_skipped() -> None:
    async with following(first=[stored(1, tokens=[1, 2])]) as (publisher, sink, subscription):
        await sink.wait_for(lambda: sink.num_held([1, 2]) == 1)
        publisher.make(stored(2, tokens=[3, 4], parent=1))
        await publisher.publish(stored(3, tokens=[5, 6], parent=2))
        await sink.wait_for(lambda: sink.num_held([1, 2, 3, 4, 5, 6]) == 3)
        await publisher.send(1)
        await publisher.publish(removed(3))
        await sink.wait_for(lambda: sink.num_held([1, 2, 3, 4, 5, 6]) == 2)

        statistics = subscription.statistics()
    assert (statistics.num_gaps, statistics.num_unfilled_gaps, statistics.num_restarts) == (1, 0, 0)


async def test_a_gap_that_nobody_can_fill_drops_what_was_known() -> None:
    async with following(is_replayed=False) as (publisher, sink, subscription):
        await publisher.publish(stored(1, tokens=[1, 2]))
        await sink.wait_for(lambda: sink.num_held([1, 2]) == 1)
        publisher.make(removed(1))
        await publisher.publish(stored(2, tokens=[3, 4]))
        await sink.wait_for(lambda: sink.num_held([3, 4]) == 1)

        assert sink.num_held([1, 2]) == 0
        assert subscription.statistics().num_unfilled_gaps == 1


async def test_batches_that_can_be_replayed_no_more_drop_what_was_known() -> None:
    async with following(quiet_s=0.05) as (publisher, sink, subscription):
        await publisher.publish(stored(1, tokens=[1, 2]))
        await sink.wait_for(lambda: sink.num_held([1, 2]) == 1)
        publisher.num_dropped = 2
        publisher.make(removed(1))
        publisher.make(stored(2, tokens=[3, 4]))
        await sink.wait_for(lambda: sink.num_held([3, 4]) == 1)

        assert sink.num_held([1, 2]) == 0
        assert subscription.statistics().num_unfilled_gaps == 1


async def test_a_restarted_engine_begins_with_nothing() -> None:
    async with following(first=[stored(1, tokens=[1, 2])]) as (publisher, sink, subscription):
        await sink.wait_for(lambda: sink.num_held([1, 2]) == 1)
        publisher.restart()
        await publisher.publish(stored(9, tokens=[3, 4]))
        await sink.wait_for(lambda: sink.num_held([3, 4]) == 1)

        assert sink.num_held([1, 2]) == 0
        assert subscription.statistics().num_restarts == 1


async def test_a_restart_is_noticed_though_nothing_is_published() -> None:
    async with following(first=[stored(1, tokens=[1, 2])], quiet_s=0.05) as (publisher, sink, subscription):
        await sink.wait_for(lambda: sink.num_held([1, 2]) == 1)
        publisher.restart()
        await sink.wait_for(lambda: sink.num_held([1, 2]) == 0)

        assert subscription.statistics().num_restarts == 1


async def test_a_batch_that_was_lost_last_is_found_when_it_is_quiet() -> None:
    async with following(quiet_s=0.05) as (publisher, sink, subscription):
        publisher.make(stored(1, tokens=[1, 2]))
        await sink.wait_for(lambda: sink.num_held([1, 2]) == 1)

        assert subscription.statistics().num_replayed == 1


async def test_a_replay_that_never_comes_holds_up_events_once() -> None:
    with zmq.asyncio.Context() as context:
        publisher, sink = Publisher(context), WatchedSink()
        source = EventSource(publisher.source.publish, "tcp://127.0.0.1:1")
        subscription = Subscription(source, sink, quiet_s=0.01, replay_timeout_s=0.2)
        task = asyncio.get_running_loop().create_task(subscription.run(context))
        try:
            await publisher.wait_for_subscriber()
            for number in range(5):
                tokens = [number, number]
                await publisher.publish(stored(number, tokens=tokens))
                await sink.wait_for(lambda tokens=tokens: sink.num_held(tokens) == 1)
                await asyncio.sleep(0.05)  # long enough for it to be quiet

            statistics = subscription.statistics()
        finally:
            task.cancel()
            await asyncio.wait([task])
            publisher.close()
    assert (statistics.num_batches, statistics.num_unanswered) == (5, 1)


async def test_what_cannot_be_read_is_counted_and_passed_over() -> None:
    async with following() as (publisher, sink, subscription):
        await publisher._publishing.send_multipart([b"", b"not a number", b"x"])
        await publisher.publish(stored(1, tokens=[1, 2]))
        await sink.wait_for(lambda: sink.num_held([1, 2]) == 1)
        await publisher.publish(stored(2, tokens=[3, 4]))
        # A replay may have brought the first batch, but what came before the second in the queue is read by then.
        await sink.wait_for(lambda: sink.num_held([3, 4]) == 1)

        assert subscription.statistics().num_unreadable == 1


# -- what events mean


def applied(*events: dict[str, object]) -> WatchedSink:
    from headrace.gateway.kv_events.wire import read_batch

    sink = WatchedSink()
    sink.apply(read_batch(msgspec.msgpack.encode([1.0, events])))
    return sink


async def test_other_media_and_other_groups_are_not_the_cache() -> None:
    sink = applied(
        stored(1, tokens=[1, 2]),
        stored(2, tokens=[3, 4], parent=1, medium="CPU"),
        stored(3, tokens=[3, 4], parent=1, group_idx=1),
        removed(1, medium="CPU"),
    )

    assert sink.num_held([1, 2, 3, 4]) == 1
    assert sink.statistics().num_passed_over == 3


async def test_adapters_and_salts_are_chains_of_their_own() -> None:
    sink = applied(
        stored(1, tokens=[1, 2], lora_id=5, lora_name="tuned", extra_keys=[["tuned"]]),
        stored(2, tokens=[1, 2], extra_keys=[["pepper"]]),
        stored(3, tokens=[1, 2], lora_name="tuned", extra_keys=[["tuned", "salt"]]),
    )

    assert sink.num_held([1, 2]) == 0
    assert sink.num_held([1, 2], adapter="tuned") == 1
    assert sink.num_held([1, 2], salt="pepper") == 1
    assert sink.num_held([1, 2], adapter="tuned", salt="salt") == 1


async def test_an_image_keeps_its_placeholders_from_being_taken_for_text() -> None:
    sink = applied(stored(1, 2, tokens=[1, 2, 9, 9], extra_keys=[None, [["image", 0]]]))

    assert sink.num_held([1, 2, 9, 9]) == 1


async def test_events_that_contradict_themselves_are_passed_over() -> None:
    sink = applied(stored(1, tokens=[1, 2, 3]), stored(2, tokens=[-1, 2]), stored(3, tokens=[1 << 40, 2]))

    assert sink.statistics().num_passed_over == 3
