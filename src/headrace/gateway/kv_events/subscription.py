"""One source of KV events, over ZMQ and in the event loop: listens, asks for what is missing, and notices restarts.

A publisher drops what a subscriber is too slow for and says nothing, and one that was restarted may publish nothing for
long. So where batches can be replayed, they are also asked for when it has been quiet for a while: the answer begins
with the last batch that was applied, or the engine is another one. Nothing published is taken in while that is awaited,
so a source whose replays never come (a port that is closed to us) is asked ever less often.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import cast

import zmq
import zmq.asyncio

from headrace.errors import UpstreamProtocolError
from headrace.gateway.kv_events.apply import EventSink
from headrace.gateway.kv_events.sequence import Sequence, Verdict
from headrace.gateway.kv_events.sources import EventSource
from headrace.gateway.kv_events.wire import EventBatch, Message, ask_replay, read_batch, read_message, read_replayed

_LOG = logging.getLogger(__name__)
_REPLAY_TIMEOUT_S = 5.0
_FIRST_REPLAY_PAUSE_S = 30.0
_MAX_REPLAY_PAUSE_S = 600.0
_MAX_WAITING_MESSAGES = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionStatistics:
    """Batches of one source so far."""

    num_batches: int
    num_replayed: int
    num_gaps: int
    num_unfilled_gaps: int
    """Gaps that no replay filled; what was known of the cache is dropped then."""
    num_restarts: int
    num_unreadable: int
    num_unanswered: int
    """Replays that were asked for and did not come."""


class Subscription:
    """Follows `source` into `sink` until `run` is cancelled, which closes its sockets.

    After `quiet_s` without a batch it asks whether it has missed any.
    """

    def __init__(
        self,
        source: EventSource,
        sink: EventSink,
        *,
        quiet_s: float = 2.0,
        replay_timeout_s: float = _REPLAY_TIMEOUT_S,
    ) -> None:
        self.source = source
        self.sink = sink
        self._quiet_s = quiet_s
        self._replay_timeout_s = replay_timeout_s
        self._replay_pause_s = _FIRST_REPLAY_PAUSE_S
        self._replays_from_s = float("-inf")
        """Before that no replay is asked for, of the event loop's time."""
        self._sequence = Sequence()
        self._num_batches = 0
        self._num_replayed = 0
        self._num_gaps = 0
        self._num_unfilled_gaps = 0
        self._num_restarts = 0
        self._num_unreadable = 0
        self._num_unanswered = 0

    async def run(self, context: zmq.asyncio.Context) -> None:
        """Never returns."""
        subscriber = context.socket(zmq.SUB)
        coming: asyncio.Future[list[bytes]] | None = None
        try:
            subscriber.setsockopt(zmq.LINGER, 0)
            subscriber.setsockopt(zmq.RCVHWM, _MAX_WAITING_MESSAGES)
            subscriber.setsockopt(zmq.SUBSCRIBE, self.source.topic.encode())
            subscriber.connect(self.source.publish)
            await self._catch_up(context)
            while True:
                # A future, as zmq.asyncio says. Not cancelled when it is quiet: what comes just then would be lost.
                coming = cast("asyncio.Future[list[bytes]]", subscriber.recv_multipart())
                while not (await asyncio.wait([coming], timeout=self._quiet_s))[0]:
                    await self._catch_up(context)
                await self._take(coming.result(), context)
        finally:
            if coming is not None:
                coming.cancel()
            subscriber.close(linger=0)

    def statistics(self) -> SubscriptionStatistics:
        return SubscriptionStatistics(
            num_batches=self._num_batches,
            num_replayed=self._num_replayed,
            num_gaps=self._num_gaps,
            num_unfilled_gaps=self._num_unfilled_gaps,
            num_restarts=self._num_restarts,
            num_unreadable=self._num_unreadable,
            num_unanswered=self._num_unanswered,
        )

    def __repr__(self) -> str:
        return f"Subscription({self.source.publish}, num_batches={self._num_batches}, {self._sequence!r})"

    async def _take(self, frames: list[bytes], context: zmq.asyncio.Context) -> None:
        try:
            message = read_message(frames)
            batch = read_batch(message.payload)
        except UpstreamProtocolError as error:
            self._note_unreadable(error)
            return
        verdict = self._sequence.judge(message.number, batch.time_s)
        if verdict is Verdict.RESTART:
            self._note_restart()
            verdict = self._sequence.judge(message.number, batch.time_s)
        if verdict is Verdict.GAP:
            await self._fill_gap(context)
            verdict = self._sequence.judge(message.number, batch.time_s)
            if verdict is Verdict.GAP:
                self._give_up(message.number)
                verdict = Verdict.APPLY
        if verdict is Verdict.APPLY:
            self._apply(message, batch)

    async def _fill_gap(self, context: zmq.asyncio.Context) -> None:
        if self._sequence.next_number:
            self._num_gaps += 1
        await self._catch_up(context)

    async def _catch_up(self, context: zmq.asyncio.Context) -> None:
        """Apply what the source has beyond what was applied; after a restart all of it."""
        if self.source.replay is None or asyncio.get_running_loop().time() < self._replays_from_s:
            return
        try:
            if not await self._replay(context):
                self._note_restart()
                await self._replay(context)
            self._replay_pause_s = _FIRST_REPLAY_PAUSE_S
        except TimeoutError:
            self._note_unanswered()
        except UpstreamProtocolError as error:
            self._note_unreadable(error)

    async def _replay(self, context: zmq.asyncio.Context) -> bool:
        """Apply what a replay from the last applied batch on brings. False if that is not there or is another one."""
        number = self._sequence.next_number
        is_same = number == 0
        replayed = _replayed(context, self.source.replay or "", max(0, number - 1), timeout_s=self._replay_timeout_s)
        async with aclosing(replayed) as messages:
            async for message in messages:
                batch = read_batch(message.payload)
                verdict = self._sequence.judge_replayed(message.number, batch.time_s, is_first=not is_same)
                if verdict is Verdict.RESTART:
                    return False
                is_same = True
                if verdict is Verdict.SKIP:
                    continue
                if verdict is Verdict.GAP:
                    self._give_up(message.number)
                self._num_replayed += 1
                self._apply(message, batch)
        return is_same

    def _apply(self, message: Message, batch: EventBatch) -> None:
        self.sink.apply(batch)
        self._sequence.note_applied(message.number, batch.time_s)
        self._num_batches += 1

    def _give_up(self, number: int) -> None:
        """What comes before `number` cannot be had. Without a beginning there is nothing yet that could be wrong."""
        if self._sequence.next_number == 0:
            return
        self._num_unfilled_gaps += 1
        first, last = self._sequence.next_number, number - 1
        _LOG.warning("KV events of %s: batches %d to %d are lost", self.source.publish, first, last)
        self.sink.clear()

    def _note_restart(self) -> None:
        _LOG.info("KV events of %s begin anew: the engine was restarted", self.source.publish)
        self._num_restarts += 1
        self._sequence.reset()
        self.sink.clear()

    def _note_unanswered(self) -> None:
        log = _LOG.debug if self._num_unanswered else _LOG.warning
        log(
            "KV events of %s: no replay from %s within %g s; what is missed until the next attempt is lost",
            *(self.source.publish, self.source.replay, self._replay_timeout_s),
        )
        self._num_unanswered += 1
        self._replays_from_s = asyncio.get_running_loop().time() + self._replay_pause_s
        self._replay_pause_s = min(2 * self._replay_pause_s, _MAX_REPLAY_PAUSE_S)

    def _note_unreadable(self, error: UpstreamProtocolError) -> None:
        if self._num_unreadable == 0:
            _LOG.warning("KV events of %s: %s", self.source.publish, error.message)
        self._num_unreadable += 1


async def _replayed(
    context: zmq.asyncio.Context, address: str, first: int, *, timeout_s: float
) -> AsyncGenerator[Message]:
    """All batches from number `first` on that the source still has. Raises TimeoutError and UpstreamProtocolError."""
    dealer = context.socket(zmq.DEALER)
    try:
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.setsockopt(zmq.RCVHWM, 0)  # a replay comes in one go, and what does not fit would be dropped
        dealer.connect(address)
        await dealer.send_multipart(ask_replay(first))
        while True:
            async with asyncio.timeout(timeout_s):
                message = read_replayed(await dealer.recv_multipart())
            if message is None:
                return
            yield message
    finally:
        dealer.close(linger=0)
