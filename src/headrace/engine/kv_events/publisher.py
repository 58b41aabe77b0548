"""Sends batches of KV events over ZMQ and replays them to who asks, from a thread of its own.

The core's thread only appends: `publish` never waits. Each batch has a number in a sequence without gaps; what the
sending queue has no place for, and what ZMQ drops for a slow subscriber, is a gap that a replay fills while the batch
is among the last `buffer_steps`. Messages are `topic, sequence number (8 bytes, big-endian), payload`.
"""

import contextlib
import socket
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import zmq

from headrace.engine.kv_events.config import KVEventsConfig
from headrace.engine.kv_events.events import KVEventBatch
from headrace.errors import SettingsError

_NUMBER_BYTES = 8
_END_OF_REPLAY = (-1).to_bytes(_NUMBER_BYTES, "big", signed=True)
_LINGER_MS = 200
"""What is on its way when the core ends may take so long to leave."""
_CLOSE_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KVEventStatistics:
    """Counters of batches since the start."""

    num_batches: int
    num_unsent: int
    """Not sent, because the thread was behind; replay has them."""
    num_replayed: int


@dataclass(frozen=True, slots=True)
class _Numbered:
    number: int
    batch: KVEventBatch

    @property
    def key(self) -> bytes:
        return self.number.to_bytes(_NUMBER_BYTES, "big")


class KVEventPublisher:
    """Binds and starts when it is built; SettingsError for an address that cannot be had. `close` ends it.

    `publish` belongs to one thread.
    """

    def __init__(self, config: KVEventsConfig) -> None:
        self._config = config
        self._topic = config.topic.encode()
        self._num_batches = 0
        self._num_unsent = 0
        self._num_replayed = 0
        self._waiting: deque[_Numbered] = deque()
        self._replayable: deque[_Numbered] = deque(maxlen=config.buffer_steps)
        self._lock = threading.Lock()
        self._is_closing = False
        self._wake_end, self._woken_end = socket.socketpair()
        self._wake_end.setblocking(False)
        self._woken_end.setblocking(False)
        self._context = zmq.Context()
        try:
            self._publishing = self._open_publishing()
            self._replaying = self._open_replaying()
        except BaseException:
            self._context.destroy(linger=0)
            self._wake_end.close()
            self._woken_end.close()
            raise
        self._thread = threading.Thread(target=self._run, name="headrace-kv-events", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<KVEventPublisher {self.endpoint} {self._num_batches} batches, {len(self._waiting)} wait>"

    @property
    def endpoint(self) -> str:
        """Where subscribers connect to, with the port that the system chose."""
        return self._publishing_address

    @property
    def replay_endpoint(self) -> str | None:
        return self._replaying_address

    def publish(self, batch: KVEventBatch) -> None:
        """Number the batch and leave it to the thread."""
        numbered = _Numbered(self._num_batches, batch)
        self._num_batches += 1
        with self._lock:
            self._replayable.append(numbered)
            if len(self._waiting) < self._config.max_queue_size:
                self._waiting.append(numbered)
            else:
                self._num_unsent += 1
        self._wake()

    def close(self) -> None:
        """Send what waits and end the thread and its sockets. Idempotent."""
        self._is_closing = True
        self._wake()
        self._thread.join(timeout=_CLOSE_TIMEOUT_S)

    def statistics(self) -> KVEventStatistics:
        return KVEventStatistics(
            num_batches=self._num_batches, num_unsent=self._num_unsent, num_replayed=self._num_replayed
        )

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # full: it is awake; closed: it has ended
            self._wake_end.send(b"\0")

    # -- sockets

    def _open_publishing(self) -> "zmq.Socket[bytes]":
        publishing = self._context.socket(zmq.PUB)
        publishing.setsockopt(zmq.SNDHWM, self._config.hwm)
        publishing.setsockopt(zmq.LINGER, _LINGER_MS)
        self._publishing_address = _attach(publishing, self._config.endpoint)
        return publishing

    def _open_replaying(self) -> "zmq.Socket[bytes] | None":
        self._replaying_address: str | None = None
        if self._config.replay_endpoint is None:
            return None
        replaying = self._context.socket(zmq.ROUTER)
        replaying.setsockopt(zmq.SNDHWM, self._config.buffer_steps + 1)  # one whole replay; it drops what is beyond
        replaying.setsockopt(zmq.LINGER, _LINGER_MS)
        self._replaying_address = _bind(replaying, self._config.replay_endpoint)
        return replaying

    # -- the thread's own

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._woken_end, zmq.POLLIN)
        if self._replaying is not None:
            poller.register(self._replaying, zmq.POLLIN)
        with contextlib.ExitStack() as cleanup:
            cleanup.callback(self._wake_end.close)
            cleanup.callback(self._woken_end.close)
            for address in (self._publishing_address, self._replaying_address):
                cleanup.callback(_remove_socket_file, address)
            cleanup.callback(self._context.destroy, linger=_LINGER_MS)
            while not self._is_closing:
                ready = {readable for readable, _ in poller.poll()}
                self._drain_wakes()
                self._send_waiting()
                if self._replaying in ready:
                    self._replay()
            self._send_waiting()

    def _drain_wakes(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._woken_end.recv(4096):
                pass

    def _send_waiting(self) -> None:
        for numbered in self._take_waiting():
            self._publishing.send_multipart([self._topic, numbered.key, msgspec.msgpack.encode(numbered.batch)])

    def _take_waiting(self) -> Iterator[_Numbered]:
        while True:
            with self._lock:
                if not self._waiting:
                    return
                numbered = self._waiting.popleft()
            yield numbered

    def _replay(self) -> None:
        """Answer one subscriber: every batch that is left from its number on, then the end."""
        assert self._replaying is not None
        client, *frames = self._replaying.recv_multipart()
        if len(frames) != 2 or len(frames[1]) != _NUMBER_BYTES:
            return  # not a question that has an answer
        first = int.from_bytes(frames[1], "big")
        with self._lock:
            wanted = [numbered for numbered in self._replayable if numbered.number >= first]
        for numbered in wanted:
            payload = msgspec.msgpack.encode(numbered.batch)
            self._replaying.send_multipart([client, b"", self._topic, numbered.key, payload])
        self._num_replayed += len(wanted)
        self._replaying.send_multipart([client, b"", b"", _END_OF_REPLAY, b""])


def _attach(publishing: "zmq.Socket[bytes]", endpoint: str) -> str:
    """Bind what names no single peer, else connect, by vLLM's rule; the address that it has now."""
    if "*" in endpoint or "::" in endpoint or endpoint.startswith(("ipc://", "inproc://")):
        return _bind(publishing, endpoint)
    publishing.connect(endpoint)
    return endpoint


def _bind(socket_: "zmq.Socket[bytes]", endpoint: str) -> str:
    try:
        socket_.bind(endpoint)
    except zmq.ZMQError as error:
        message = f"KV events cannot be bound to {endpoint}: {error}; choose another address or port 0"
        raise SettingsError(message, param="kv_events_config") from error
    address = socket_.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(address, bytes)
    return address.rstrip(b"\0").decode()


def _remove_socket_file(address: str | None) -> None:
    """Of an ipc address that was bound; ZMQ leaves it behind."""
    if address is not None and address.startswith("ipc:///"):
        Path(address.removeprefix("ipc://")).unlink(missing_ok=True)
