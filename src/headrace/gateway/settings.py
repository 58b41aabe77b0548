"""The gateway's settings. The command line makes flags, YAML keys and environment names of them."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from headrace.errors import SettingsError
from headrace.gateway.discovery.sources import parse_entries
from headrace.gateway.kv_events.sources import parse_sources
from headrace.gateway.routing.policy import PolicyName
from headrace.gateway.upstream.address import parse_address
from headrace.gateway.upstream.key import check_key
from headrace.units import NumBytes, Seconds, Secret

_MAX_WEIGHT = 1000
_AT_LEAST_ONE = frozenset(
    {
        *("unhealthy_after", "breaker_failures", "token_in_min_tokens", "token_in_audit_every"),
        *("parity_drifts", "parity_recovery"),
    }
)
_MIN_KEY_CHARACTERS = 16
_MAX_WORKERS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """Everything that an operator can set of a gateway."""

    endpoint: tuple[str, ...] = ()
    """The engines: URLs such as http://127.0.0.1:8000, or what finds them: dns://NAME:PORT, kube://NAMESPACE/pods. In a
    YAML file, whose changes are followed, also mappings {url, weight, api_key, engine, models, kv_events}."""
    endpoints_file: str | None = None
    """YAML file with a list of such entries, read again whenever it changes."""
    discovery_interval_s: Seconds = 5.0
    """Time between two looks at files of endpoints, and at names."""
    endpoint_drain_timeout_s: Seconds = 300.0
    """Time for requests under way to end at an endpoint that is listed no more."""
    host: str = "127.0.0.1"
    """Address that clients connect to."""
    port: int = 8080
    """Port that clients connect to; 0 lets the system choose."""
    admin_host: str = "127.0.0.1"
    """Address of metrics and dashboard."""
    admin_port: int | None = 8081
    """Port of metrics and dashboard; 0 lets the system choose, none leaves them out."""
    upstream_api_key: tuple[Secret, ...] = field(default=(), repr=False)
    """Keys for the endpoints, as URL=KEY, or one without URL= for all others; better as env:NAME or file:PATH in place
    of KEY. A client's own Authorization goes through where neither the endpoint nor the gateway has keys."""
    admin_api_key: Secret | None = field(default=None, repr=False)
    """Key of the admin API, which changes the endpoints at run time; none turns changes off."""
    workers: int = 1
    """Processes that serve the port together; what limits requests, connections and memory limits each of them."""
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
    access_log: bool = False
    """Log a line for each request: key, model, endpoint, tokens and times, but nothing of the prompt."""
    otlp_traces_endpoint: str | None = None
    """URL that traces are sent to by OTLP over HTTP, such as http://127.0.0.1:4318/v1/traces."""
    traces_share: float = 1.0
    """Part of the requests that are traced, from 0 to 1, among those whose client has not decided it."""
    tokenizer_path: tuple[str, ...] = ()
    """Tokenizers as MODEL=PATH, or one bare PATH for all models; a path may be a name on the Hugging Face hub. Without:
    what an endpoint's /v1/models gives as `root`, if that is a directory here or its files are in the hub's cache."""
    tokenizer: Literal["local", "remote", "auto"] = "local"
    """Whose tokenizer counts. `local`: the gateway's. `remote`: that of an endpoint that serves the model (POST
    /tokenize), and the gateway's when none answers. `auto`: the gateway's where it has the model's, else an
    endpoint's."""
    tokenizer_parity_share: float = 0.01
    """Part of the endpoints' token ids that is compared with the gateway's own, in the background, from 0 to 1."""
    token_in: Literal["auto", "off"] = "auto"  # noqa: S105 - no password
    """Whether endpoints that take token ids get those that are known here, so that they need not tokenize again."""
    token_in_min_tokens: int = 128
    """Prompts with fewer tokens go as text: it costs an engine next to nothing."""
    token_in_audit_every: int = 64
    """One of so many prompts that could go as ids goes as text, to have the engine count it."""
    parity_drifts: int = 3
    """Differences between counts of prompt tokens here and the engine's, close together, after which a model gets text
    and its limits count as estimates."""
    parity_recovery: int = 20
    """Equal counts in a row that end that; twice as many the next time."""
    tokenizer_health_period_s: Seconds = 30.0
    """Time between two health checks of an endpoint's tokenizer, where endpoints are asked."""
    tokenizer_ttl_s: Seconds = 300.0
    """An endpoint's tokenizer that was not asked for this long is dropped from the pool."""
    max_remote_tokenizers: int = 100
    """Tokenizers in that pool, one for each model at each endpoint; the one that was idle longest makes room."""
    tokenize_timeout_s: Seconds = 2.0
    """How long a request may wait for its exact token count; then it goes on without."""
    max_attempts: int = 3
    """Endpoints that one request is sent to at most, when they fail before they answer."""
    retry_share: float = 0.2
    """Retries that one request earns for all; a fleet that fails gets no more than this part on top of its load."""
    retry_floor: int = 20
    """Retries that there are in 10 seconds however few the requests."""
    retry_delay_s: Seconds = 0.05
    """A request waits for a random part of this before it goes to another endpoint; the next time of twice as much."""
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
    load_metrics: Literal["auto", "off"] = "auto"
    """Whether endpoints are asked for their own metrics (GET /metrics), to know of load that is not from here."""
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
        if not self.endpoint and self.endpoints_file is None and self.admin_api_key is None:
            raise SettingsError("endpoint: the gateway has none; give at least one URL", param="endpoint")
        parse_entries(self.endpoint)  # raises for what is no URL
        if self.admin_api_key is not None and len(self.admin_api_key) < _MIN_KEY_CHARACTERS:
            message = f"admin_api_key is too short; give at least {_MIN_KEY_CHARACTERS} characters"
            raise SettingsError(message, param="admin_api_key")
        self._check_ports()
        self._check_positive()
        tokenizer_paths(self.tokenizer_path)
        self._check_routing()

    def _check_routing(self) -> None:
        parse_sources(self.kv_event_source)
        endpoint_weights(self.endpoint_weight)
        upstream_keys(self.upstream_api_key)
        if not 1 <= self.block_size <= 4096:
            raise SettingsError(f"block_size is {self.block_size}; give 1 to 4096", param="block_size")
        if not 0 <= self.retry_share <= 1:
            raise SettingsError(f"retry_share is {self.retry_share:g}; give 0 to 1", param="retry_share")
        if self.retry_floor < 0:
            raise SettingsError(f"retry_floor is {self.retry_floor}; give 0 or more", param="retry_floor")
        for name in ("decision_log_share", "tokenizer_parity_share"):
            if not 0 <= (share := getattr(self, name)) <= 1:
                raise SettingsError(f"{name} is {share:g}; give 0 to 1", param=name)
        if not 0 <= self.traces_share <= 1:
            raise SettingsError(f"traces_share is {self.traces_share:g}; give 0 to 1", param="traces_share")

    def _check_ports(self) -> None:
        if not 1 <= self.workers <= _MAX_WORKERS:
            raise SettingsError(f"workers is {self.workers}; give 1 to {_MAX_WORKERS}", param="workers")
        for name, port in (("port", self.port), ("admin_port", self.admin_port)):
            if port is not None and not 0 <= port <= 65535:
                raise SettingsError(f"{name} {port} is no port; give 0 to 65535", param=name)

    def _check_positive(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            is_limit = name.startswith("max_") or name in _AT_LEAST_ONE
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


def upstream_keys(entries: tuple[str, ...]) -> dict[str | None, str]:
    """`URL=KEY` entries by the endpoint's URL; the bare key, if there is one, stands under None. Raises SettingsError,
    which shows no key."""
    keys: dict[str | None, str] = {}
    for entry in entries:
        has_url = entry.startswith(("http://", "https://"))
        text, _, key = entry.partition("=") if has_url else ("", "", entry)
        url = parse_address(text, param="upstream_api_key").url if has_url else None
        if url in keys:
            which = f"endpoint {url}" if url else "all endpoints"
            raise SettingsError(f"upstream_api_key: {which} has one already; give one each", param="upstream_api_key")
        keys[url] = check_key(key, param="upstream_api_key")
    return keys


def tokenizer_paths(entries: tuple[str, ...]) -> dict[str | None, Path]:
    """`MODEL=PATH` entries by model; the bare path, if there is one, stands under None. Raises SettingsError."""
    paths: dict[str | None, Path] = {}
    for entry in entries:
        name, separator, path = entry.partition("=")
        model = name if separator else None
        text = path if separator else entry
        if not text or model == "":
            raise SettingsError(f"tokenizer_path {entry!r} is neither MODEL=PATH nor PATH", param="tokenizer_path")
        if model in paths:
            which = f"model {model!r}" if model else "all models"
            raise SettingsError(
                f"tokenizer_path {entry!r}: {which} has one already; give one each", param="tokenizer_path"
            )
        paths[model] = Path(text)
    return paths
