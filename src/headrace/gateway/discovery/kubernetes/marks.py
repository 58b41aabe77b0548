"""The labels and annotations that describe an engine: ours, AIBrix's, and AIBrix's older ones, in this order. A label
counts before an annotation. Pure."""

from dataclasses import dataclass
from typing import Literal, get_args

from headrace.errors import SettingsError
from headrace.gateway.discovery.kubernetes.objects import ObjectMeta
from headrace.gateway.kv_events.sources import EventSource

MODEL = ("headrace.dev/model", "model.aibrix.ai/name", "aibrix.ai/model", "aibrix.ai/name")
ENGINE = ("headrace.dev/engine", "model.aibrix.ai/engine", "aibrix.ai/engine")
PORT = ("headrace.dev/port", "model.aibrix.ai/port", "aibrix.ai/port")
SCHEME = ("headrace.dev/scheme",)
WEIGHT = ("headrace.dev/weight",)
DRAIN = ("headrace.dev/drain", "aibrix.ai/draining")
KV_EVENTS = ("headrace.dev/kv-events", "model.aibrix.ai/kv-events-enabled", "aibrix.ai/kv-events-enabled")
KV_EVENTS_PORT = ("headrace.dev/kv-events-port",)
KV_EVENTS_REPLAY_PORT = ("headrace.dev/kv-events-replay-port",)
KV_EVENTS_TOPIC = ("headrace.dev/kv-events-topic",)

Scheme = Literal["http", "https"]

_KV_EVENTS_PORT = 5557
_KV_EVENTS_REPLAY_PORT = 5558
_MAX_WEIGHT = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """What an object says of the engine behind it."""

    model: str | None
    engine: str | None
    port: int | None
    scheme: Scheme
    weight: float | None
    is_draining: bool
    """It shall get no more requests."""
    kv_events: tuple[int, int, str] | None
    """Ports of the events and of their replay, and the topic."""

    def event_source(self, host: str) -> EventSource | None:
        """Where the engine on `host` publishes what it caches. `host` stands as in a URL."""
        if self.kv_events is None:
            return None
        port, replay_port, topic = self.kv_events
        return EventSource(f"tcp://{host}:{port}", f"tcp://{host}:{replay_port}", topic)


def read_marks(meta: ObjectMeta) -> Marks:
    """Raises SettingsError naming the label and its value."""
    scheme = meta.mark(*SCHEME) or "http"
    if scheme not in get_args(Scheme):
        raise SettingsError(f"{SCHEME[0]} {scheme!r} is neither http nor https")
    return Marks(
        model=meta.mark(*MODEL),
        engine=(meta.mark(*ENGINE) or "").lower() or None,
        port=_port(meta, PORT),
        scheme="https" if scheme == "https" else "http",
        weight=_weight(meta),
        is_draining=_is_on(meta, DRAIN),
        kv_events=_kv_events(meta),
    )


def has_model(meta: ObjectMeta) -> bool:
    """Whether it is marked as an engine."""
    return meta.mark(*MODEL) is not None


def _port(meta: ObjectMeta, names: tuple[str, ...]) -> int | None:
    text = meta.mark(*names)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 65535):
        raise SettingsError(f"{names[0]} {text!r} is no port; give 1 to 65535")
    return int(text)


def _weight(meta: ObjectMeta) -> float | None:
    text = meta.mark(*WEIGHT)
    if text is None:
        return None
    try:
        weight = float(text)
    except ValueError:
        weight = 0.0
    if not 0 < weight <= _MAX_WEIGHT:
        raise SettingsError(f"{WEIGHT[0]} {text!r} is not a number over 0, to {_MAX_WEIGHT}")
    return weight


def _is_on(meta: ObjectMeta, names: tuple[str, ...]) -> bool:
    return (meta.mark(*names) or "").lower() == "true"


def _kv_events(meta: ObjectMeta) -> tuple[int, int, str] | None:
    port = _port(meta, KV_EVENTS_PORT)
    if port is None and not _is_on(meta, KV_EVENTS):
        return None
    replay_port = _port(meta, KV_EVENTS_REPLAY_PORT)
    topic = meta.mark(*KV_EVENTS_TOPIC) or ""
    return port or _KV_EVENTS_PORT, replay_port or _KV_EVENTS_REPLAY_PORT, topic
