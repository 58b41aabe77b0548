"""The gateway at one moment, as the dashboard, `headrace top` and /state show it: the form in which it is sent.

Fields are only ever added: a newer `headrace top` reads an older gateway, and the other way round.
"""

import msgspec

from headrace.gateway.telemetry.decisions import Decision


class EndpointView(msgspec.Struct, kw_only=True):
    """One endpoint's line."""

    name: str
    is_healthy: bool
    why: str
    breaker: str
    models: list[str]
    num_in_flight: int
    num_done: int
    num_failed: int
    num_cancelled: int
    num_connections: int
    num_waiting_tokens: int = 0
    """Prompt tokens of requests that have no answer yet."""
    kv_cache_usage: float | None = None
    """Part of its KV cache in use, 0 to 1, if it tells."""
    hit_ratio: float | None = None
    """Cached prompt tokens of all, as it reported them in the last minute; None where there were none."""
    num_requests_elsewhere: int | None = None
    """Requests that it has from others than this gateway, if it tells."""
    why_draining: str | None = None
    """Why it gets no more requests, however well it is."""
    origin: str = ""
    """Which source of endpoints it comes from."""
    weight: float = 1.0
    engine: str = ""
    """What serves there, as far as it is known."""


class LaneView(msgspec.Struct, kw_only=True):
    """One way to run an encode: what waits and runs now; times of the last minute."""

    name: str
    num_waiting: int = 0
    num_running: int = 0
    per_s: float = 0.0
    wait_p50_ms: float | None = None
    wait_p99_ms: float | None = None
    encode_p50_ms: float | None = None
    encode_p99_ms: float | None = None


class ContentView(msgspec.Struct, kw_only=True):
    """Prompts' characters of one class, and how many needed no encoding, since the start."""

    content: str
    num_chars: int
    num_known_chars: int


class TokenizationView(msgspec.Struct, kw_only=True):
    """Hits of the cache, and what waits or is encoded now."""

    num_hits: int
    num_misses: int
    num_waiting: int
    num_cache_bytes: int = 0
    lanes: list[LaneView] = []
    contents: list[ContentView] = []


class ParityView(msgspec.Struct, kw_only=True):
    """One model's agreement with its engines' counts."""

    model: str
    exact_ratio: float | None
    num_exact: int
    num_drift: int
    reasons: dict[str, int]
    num_by_cached_cause: dict[str, int] = {}
    """Answers by whether their cached tokens were as predicted, and what a difference comes from."""
    drifting: list[str] = []
    """Routes and kinds of prompts whose counts are estimates now."""
    demoted: list[str] = []
    """Endpoints and routes that get text because their counts differ."""


class KeyView(msgspec.Struct, kw_only=True):
    """What one key has used since the start."""

    name: str
    num_requests: int
    prompt_tokens: int
    completion_tokens: int
    cost: str
    cached_tokens: int = 0


class AdmissionView(msgspec.Struct, kw_only=True):
    """Keys, limits and queues."""

    num_keys: int
    why_local: str | None
    """Why limits that should be shared are not."""
    why_keys_stale: str | None
    num_waiting: dict[str, int]
    num_turned_away: int
    """Requests for which the queue was full, or too slow."""
    keys: list[KeyView]
    """Those that used most, by cost and tokens."""


class RoutingView(msgspec.Struct, kw_only=True):
    """What is known of the endpoints' caches, and from where."""

    num_index_blocks: int
    num_index_bytes: int
    num_event_sources: int
    num_event_batches: int
    num_event_restarts: int
    num_event_gaps: int
    """Gaps that no replay filled."""


class TimesView(msgspec.Struct, kw_only=True):
    """Times of the last minute; None where nothing was timed."""

    overhead_p50_ms: float | None = None
    overhead_p99_ms: float | None = None
    first_byte_p50_ms: float | None = None
    first_byte_p99_ms: float | None = None


class Snapshot(msgspec.Struct, kw_only=True):
    """All of it; what goes over the wire once a second."""

    time_s: float
    uptime_s: float
    policy: str
    is_healthy: bool
    endpoints: list[EndpointView]
    num_in_flight: int
    num_client_connections: int
    num_requests: int
    num_disconnects: int
    requests_per_s: float
    tokens_per_s: float
    requests_per_s_history: list[float]
    tokens_per_s_history: list[float]
    loop_lag_ms: float
    tokenization: TokenizationView
    admission: AdmissionView
    routing: RoutingView
    parity: list[ParityView]
    decisions: list[Decision]
    version: str = ""
    num_concurrent: int = 0
    max_concurrent: int = 0
    prompt_tokens_per_s: float = 0.0
    prompt_tokens_per_s_history: list[float] = []
    hit_ratio: float | None = None
    """Cached prompt tokens of all, in the last minute."""
    loop_lag_ms_history: list[float] = []
    num_stalls: int = 0
    last_stall: str | None = None
    """What held the event loop in the latest stall."""
    times: TimesView = msgspec.field(default_factory=TimesView)
