"""The way of KV events out of a core: what its cache logs in a step leaves as one batch, if anybody asked for it."""

import time
from typing import TYPE_CHECKING

from headrace.engine.kv_events.config import KVEventsConfig
from headrace.engine.kv_events.events import KVEventBatch, KVEventLog
from headrace.errors import SettingsError

if TYPE_CHECKING:
    from headrace.engine.kv_events.publisher import KVEventPublisher


class KVEventFeed:
    """Without a config it has no log, and costs nothing. Belongs to the core's thread, like the log."""

    def __init__(self, config: KVEventsConfig | None, *, block_size: int) -> None:
        """Raises SettingsError when an address cannot be bound, or pyzmq is not installed."""
        self.log: KVEventLog | None = None
        self._publisher: KVEventPublisher | None = None
        self._rank = config.data_parallel_rank if config is not None else 0
        if config is not None:
            self.log = KVEventLog(block_size=block_size, use_int_hashes=config.use_int_hashes)
        if config is not None and config.publisher == "zmq":
            self._publisher = _publisher(config)

    def __repr__(self) -> str:
        return f"KVEventFeed({self.log!r}, {self._publisher!r})"

    @property
    def endpoint(self) -> str | None:
        return self._publisher.endpoint if self._publisher is not None else None

    @property
    def replay_endpoint(self) -> str | None:
        return self._publisher.replay_endpoint if self._publisher is not None else None

    @property
    def num_batches(self) -> int:
        return self._publisher.statistics().num_batches if self._publisher is not None else 0

    @property
    def num_unsent(self) -> int:
        return self._publisher.statistics().num_unsent if self._publisher is not None else 0

    def flush(self) -> None:
        """Publish what was logged since the last time; never waits."""
        if self.log is None:
            return
        events = self.log.take()
        if events and self._publisher is not None:
            self._publisher.publish(KVEventBatch(ts=time.time(), events=events, data_parallel_rank=self._rank))

    def close(self) -> None:
        if self._publisher is not None:
            self._publisher.close()


def _publisher(config: KVEventsConfig) -> "KVEventPublisher":
    try:
        from headrace.engine.kv_events.publisher import KVEventPublisher  # pyzmq is needed by nothing else
    except ImportError as error:
        message = "kv_events needs pyzmq; install headrace with the extra `engine`"
        raise SettingsError(message, param="kv_events") from error
    return KVEventPublisher(config)
