"""The gateway's settings. The command line makes flags, YAML keys and environment names of them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headrace.errors import SettingsError
from headrace.gateway.discovery.static import StaticSource
from headrace.gateway.kv_events.sources import parse_sources
from headrace.gateway.routing.policy import PolicyName
from headrace.gateway.upstream.address import parse_address
from headrace.units import NumBytes, Seconds

_MAX_WEIGHT = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """Everything that an operator can set of a gateway."""

    endpoint: tuple[str, ...]
    """URLs of the engines, such as http://127.0.0.1:8000."""
    host: str = "127.0.0.1"
    """Address that clients connect to."""
    port: int = 8080
    """Port that clients connect to; 0 lets the system choose."""
    admin_host: str = "127.0.0.1"
    """Address of metrics and dashboard."""
    admin_port: int | None = 8081
    """Port of metrics and dashboard; 0 lets the system choose, none leaves them out."""
    ready_file: str | None = None
    """File to write {"url", "admin_url", "pid"} to, as JSON, when the gateway listens."""
    policy: PolicyName = "prefix"
    """How an endpoint is chosen; `prefix` sends a request where most of its prompt is cached already."""
    session_header: str = "x-session-id"
    """Request header that names a session, for the policy `session`; without it the field `user` of the body does."""
    endpoint_weight: tuple[str, ...] = ()
    """Power of an endpoint beside the others', as URL=NUMBER; 1 for those not named."""
    block_size: int = 16
    """Tokens in a block of the endpoints' KV caches, for those that publish no KV events, which tell."""
    max_prefix_index_bytes: NumBytes = 128 << 20
    """Memory for what is known of the endpoints' caches."""
    kv_events: Literal["auto", "off"] = "auto"
    """Whether endpoints are asked (GET /kv_event_sources) where they publish what they cache."""
    kv_event_source: tuple[str, ...] = ()
    """Where an endpoint that cannot be asked publishes it, as URL=tcp://HOST:PORT[,tcp://HOST:PORT] with the address of
    replays behind the comma."""
    decision_log: str | None = None
    """File that routing decisions are appended to as JSON lines, for `headrace replay`."""
    decision_log_share: float = 1.0
    """Part of the decisions that is written, from 0 to 1."""
    max_decision_log_bytes: NumBytes = 64 << 20
    """Size of that file; then it is renamed to FILE.1 and begun anew."""
    tokenizer: tuple[str, ...] = ()
    """Tokenizers as MODEL=PATH, or one bare PATH for all models. Without: the directory that an endpoint's /v1/models
    gives as `root`, if it is on this machine."""
    tokenize_timeout_s: Seconds = 2.0
    """How long a request may wait for its exact token count; then it goes on without."""
    max_attempts: int = 3
    """Endpoints that one request is sent to at most, when they fail before they answer."""
    max_concurrent_requests: int = 2048
    """Requests served at a time; more are answered with 503."""
    max_connections: int = 8192
    """Client connections open at a time; more are answered with 503 and closed."""
    max_head_bytes: NumBytes = 64 * 1024
    """Size of a request's head."""
    max_body_bytes: NumBytes = 16 << 20
    """Size of a request's body."""
    max_held_body_bytes: NumBytes = 1 << 30
    """Size of all request bodies together that are held at a time; more are answered with 503."""
    head_timeout_s: Seconds = 15.0
    """Time for a client to send a request's head."""
    body_timeout_s: Seconds = 30.0
    """Time for a client to send a request's body, and longer at 64 KiB/s or more."""
    keepalive_timeout_s: Seconds = 75.0
    """How long an idle client connection stays open."""
    write_timeout_s: Seconds = 60.0
    """How long a client may read nothing of an answer that waits for it."""
    connect_timeout_s: Seconds = 2.0
    """Time to connect to an endpoint."""
    first_byte_timeout_s: Seconds = 600.0
    """Time for an endpoint to begin its answer; a long answer that is not streamed begins when it is complete."""
    idle_timeout_s: Seconds = 120.0
    """How long an endpoint may fall silent within an answer."""
    upstream_keepalive_timeout_s: Seconds = 4.0
    """How long an idle connection to an endpoint is kept; less than the endpoint keeps it (uvicorn: 5 s)."""
    max_idle_connections: int = 256
    """Idle connections kept per endpoint."""
    health_interval_s: Seconds = 2.0
    """Time between two probes of an endpoint."""
    health_timeout_s: Seconds = 2.0
    """Time for an endpoint to answer a probe."""
    unhealthy_after: int = 2
    """Failed probes in a row after which an endpoint gets no more requests."""
    breaker_failures: int = 3
    """Failed requests in a row after which an endpoint gets none for a while."""
    breaker_pause_s: Seconds = 1.0
    """How long that is at first; it doubles with every failed trial, up to 30 s."""
    drain_timeout_s: Seconds = 30.0
    """Time for requests under way to end when the gateway is stopped."""

    def __post_init__(self) -> None:
        if not self.endpoint:
            raise SettingsError("endpoint: the gateway has none; give at least one URL", param="endpoint")
        StaticSource(self.endpoint)  # raises for what is no URL
        self._check_ports()
        self._check_positive()
        tokenizer_paths(self.tokenizer)
        self._check_routing()

    def _check_routing(self) -> None:
        parse_sources(self.kv_event_source)
        endpoint_weights(self.endpoint_weight)
        if not 1 <= self.block_size <= 4096:
            raise SettingsError(f"block_size is {self.block_size}; give 1 to 4096", param="block_size")
        if not 0 <= self.decision_log_share <= 1:
            message = f"decision_log_share is {self.decision_log_share:g}; give 0 to 1"
            raise SettingsError(message, param="decision_log_share")

    def _check_ports(self) -> None:
        for name, port in (("port", self.port), ("admin_port", self.admin_port)):
            if port is not None and not 0 <= port <= 65535:
                raise SettingsError(f"{name} {port} is no port; give 0 to 65535", param=name)

    def _check_positive(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            is_limit = name.startswith("max_") or name in {"unhealthy_after", "breaker_failures"}
            if is_limit and value < 1:
                raise SettingsError(f"{name} is {value}; give at least 1", param=name)
            if name.endswith("_s") and not value > 0:
                raise SettingsError(f"{name} is {value} s; give more than 0", param=name)


def endpoint_weights(entries: tuple[str, ...]) -> dict[str, float]:
    """`URL=NUMBER` entries by the endpoint's URL. Raises SettingsError."""
    weights: dict[str, float] = {}
    for entry in entries:
        url, separator, text = entry.rpartition("=")
        try:
            weight = float(text)
        except ValueError:
            weight = 0.0
        if not separator or not 0 < weight <= _MAX_WEIGHT:
            message = f"endpoint_weight {entry!r} is not URL=NUMBER with a number over 0, to {_MAX_WEIGHT}"
            raise SettingsError(message, param="endpoint_weight")
        weights[parse_address(url, param="endpoint_weight").url] = weight
    return weights


def tokenizer_paths(entries: tuple[str, ...]) -> dict[str | None, Path]:
    """`MODEL=PATH` entries by model; the bare path, if there is one, stands under None. Raises SettingsError."""
    paths: dict[str | None, Path] = {}
    for entry in entries:
        name, separator, path = entry.partition("=")
        model = name if separator else None
        text = path if separator else entry
        if not text or model == "":
            raise SettingsError(f"tokenizer {entry!r} is neither MODEL=PATH nor PATH", param="tokenizer")
        if model in paths:
            which = f"model {model!r}" if model else "all models"
            raise SettingsError(f"tokenizer {entry!r}: {which} has one already; give one each", param="tokenizer")
        paths[model] = Path(text)
    return paths
