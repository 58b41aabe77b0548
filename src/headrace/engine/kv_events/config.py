"""Where KV events go: vLLM's `--kv-events-config`, as values and as the JSON that its users write."""

from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import msgspec

from headrace.errors import SettingsError

KVEventsPublisher: TypeAlias = Literal["zmq", "null"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KVEventsConfig:
    """Raises SettingsError, naming the field, for a value out of its range."""

    publisher: KVEventsPublisher = "zmq"
    """null: the events are made and dropped."""
    endpoint: str = "tcp://*:5557"
    """A ZMQ address. One with a `*` or `::`, and inproc and ipc, is bound, port 0 being the system's choice; any other
    is connected to. Each data-parallel rank takes the next port."""
    replay_endpoint: str | None = None
    """A ZMQ address to bind, where a subscriber asks for what it missed."""
    topic: str = ""
    """The first part of every message."""
    buffer_steps: int = 10_000
    """Batches that can be replayed."""
    hwm: int = 100_000
    """Batches that ZMQ keeps for a slow subscriber before it drops."""
    max_queue_size: int = 100_000
    """Batches that wait for the publishing thread; what finds no place there can still be replayed."""
    use_int_hashes: bool = True
    """Name blocks by 64-bit numbers, as vLLM does by default, and not by their whole digests."""
    data_parallel_rank: int = 0

    def __post_init__(self) -> None:
        if self.publisher not in ("zmq", "null"):
            raise SettingsError(f"publisher is {self.publisher!r}; it must be zmq or null", param="kv_events_config")
        for name in ("buffer_steps", "hwm", "max_queue_size"):
            if (value := getattr(self, name)) < 1:
                raise SettingsError(f"{name} is {value}; it must be at least 1", param="kv_events_config")
        for endpoint in (self.endpoint, self.replay_endpoint):
            if endpoint is not None and not endpoint.startswith(("tcp://", "ipc://", "inproc://")):
                message = f"{endpoint!r} is no address of KV events; write tcp://, ipc:// or inproc://"
                raise SettingsError(message, param="kv_events_config")

    def for_rank(self, rank: int) -> "KVEventsConfig":
        """The config of one data-parallel rank: tcp ports count up from the first rank's, other names get a suffix."""
        return replace(
            self,
            data_parallel_rank=rank,
            endpoint=_of_rank(self.endpoint, rank),
            replay_endpoint=_of_rank(self.replay_endpoint, rank) if self.replay_endpoint is not None else None,
        )


class _VllmForm(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """vLLM's own names and defaults."""

    enable_kv_cache_events: bool = False
    publisher: KVEventsPublisher | None = None
    endpoint: str = "tcp://*:5557"
    replay_endpoint: str | None = None
    buffer_steps: int = 10_000
    hwm: int = 100_000
    max_queue_size: int = 100_000
    topic: str = ""


def parse_kv_events_config(text: str) -> KVEventsConfig | None:
    """What vLLM's JSON asks for; None where it does not enable events. Raises SettingsError."""
    try:
        form = msgspec.json.decode(text, type=_VllmForm)
    except msgspec.DecodeError as error:
        message = f"kv_events_config is {text!r}, which is no JSON that vLLM would take: {error}"
        raise SettingsError(message, param="kv_events_config") from error
    if not form.enable_kv_cache_events:
        return None
    values: dict[str, Any] = msgspec.structs.asdict(form)
    del values["enable_kv_cache_events"]
    return KVEventsConfig(**{**values, "publisher": form.publisher or "zmq"})


def _of_rank(endpoint: str, rank: int) -> str:
    if rank == 0:
        return endpoint
    if not endpoint.startswith("tcp://"):
        return f"{endpoint}_dp{rank}"
    host, _, port = endpoint.rpartition(":")
    if not port.isdigit():
        raise SettingsError(f"{endpoint!r} has no port to count up from", param="kv_events_config")
    return endpoint if port == "0" else f"{host}:{int(port) + rank}"
