"""The settings of the engine server."""

from dataclasses import dataclass
from typing import Literal

from headrace.errors import SettingsError
from headrace.units import NumBytes, Seconds, Secret


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerSettings:
    """How one engine is served over HTTP. Raises SettingsError, naming the field, for a value that cannot work."""

    host: str = "127.0.0.1"
    """The address to listen on; 0.0.0.0 is every interface."""

    port: int = 8000
    """The port to listen on; 0 takes a free one, which the log and `ready_file` tell."""

    uds: str | None = None
    """A Unix socket to listen on instead of host and port. One that no server listens on any more is replaced; the
    server removes its own when it ends."""

    ready_file: str | None = None
    """A file to write once requests are taken: JSON with `url`, `admin_url` (null here) and `pid`."""

    api_key: tuple[Secret, ...] = ()
    """Keys of which every request must carry one as `Authorization: Bearer`; without any, the server is open.

    /health, /metrics and /version never ask for a key.
    """

    admin_api_key: tuple[Secret, ...] = ()
    """Keys that open the operator's routes (/sleep, /wake_up, /is_sleeping, /reset_prefix_cache, /start_profile,
    /stop_profile, /abort), and no other; without any, those routes answer 403 to everybody."""

    ssl_certfile: str | None = None
    """The server's certificate and its chain, in PEM; with it every connection is TLS. SIGHUP reads it again."""

    ssl_keyfile: str | None = None
    """The certificate's private key, unencrypted; by default it stands in `ssl_certfile`."""

    ssl_ca_certs: str | None = None
    """The certificates, in PEM, that clients' certificates are checked against."""

    ssl_cert_reqs: int = 0
    """Whether clients show certificates: 0 no, 1 they may, 2 they must (the numbers of Python's ssl module)."""

    allowed_origins: tuple[str, ...] = ()
    """Origins whose pages may call the server from a browser; * is every one, none leaves CORS out."""

    allowed_methods: tuple[str, ...] = ("*",)
    """Methods that such pages may use."""

    allowed_headers: tuple[str, ...] = ("*",)
    """Headers that such pages may send."""

    allow_credentials: bool = False
    """Let such pages send cookies and the browser's own credentials. API keys need it not."""

    access_log: bool = True
    """A line for every answer, with its request id, status and duration. Probes' and scrapers' are of level debug."""

    max_connections: int = 8192
    """Connections open at once, idle ones included; one more is refused with 503."""

    max_head_bytes: NumBytes = 64 << 10
    """The largest request line and headers; more are refused with 431."""

    max_body_bytes: NumBytes = 16 << 20
    """The largest request body; a longer one is refused with 413 while it arrives."""

    max_total_body_bytes: NumBytes = 1 << 30
    """Bodies of unanswered requests held at once; a request that would exceed it is refused with 503."""

    max_concurrent_requests: int = 1024
    """Requests worked on at once, waiting ones included; one more is refused with 503."""

    max_prompts: int = 128
    """Prompts in one request to /v1/completions."""

    max_inputs: int = 2048
    """Texts in one request to /v1/embeddings; as many as OpenAI takes."""

    lora_modules: tuple[str, ...] = ()
    """LoRA adapters to serve from the start, each as NAME=PATH: a request for the model NAME uses the adapter at PATH.

    The engine needs `enable_lora`.
    """

    allow_runtime_lora: bool = False
    """Let clients load and unload adapters by /v1/load_lora_adapter and /v1/unload_lora_adapter. Whoever may send
    requests can then have the server read any directory of its machine."""

    max_lora_modules: int = 256
    """LoRA adapters offered at once; the engine keeps as many in memory as its `max_cpu_loras` says."""

    tool_call_parser: Literal["hermes", "llama3_json"] | None = None
    """The form in which the model writes tool calls: hermes is <tool_call>{...}</tool_call>, llama3_json a bare JSON
    object. By default it is read from the chat template, where that is plain."""

    enable_auto_tool_choice: bool = True
    """Let answers call tools of their own accord (tool_choice "auto", the default with tools)."""

    head_timeout_s: Seconds = 30.0
    """How long a new connection may take to send its first request's headers, and a later request its own."""

    body_timeout_s: Seconds = 60.0
    """How long a request body may take to arrive."""

    write_timeout_s: Seconds = 60.0
    """How long a client may leave an answer unread before its request is aborted."""

    keep_alive_s: Seconds = 75.0
    """How long a connection may idle between two requests."""

    drain_timeout_s: Seconds = 30.0
    """How long requests may run on after SIGTERM or SIGINT before they are aborted; a second signal aborts at once."""

    health_interval_s: Seconds = 1.0
    """How often the engine's health is looked at; a dead engine ends the server."""

    def __post_init__(self) -> None:
        _check("port", self.port, is_right=0 <= self.port <= 65535, wanted="a port from 0 to 65535")
        for name in _COUNTS:
            value = getattr(self, name)
            _check(name, value, is_right=value >= 1, wanted="at least 1")
        for name in _DEADLINES:
            value = getattr(self, name)
            _check(name, value, is_right=value > 0, wanted="more than 0 seconds")
        _check("drain_timeout_s", self.drain_timeout_s, is_right=self.drain_timeout_s >= 0, wanted="0 seconds or more")
        for module in self.lora_modules:
            name, _, path = module.partition("=")
            _check("lora_modules", module, is_right=bool(name and path), wanted="NAME=PATH")
        for name in ("api_key", "admin_api_key"):
            if any(not key or not key.isascii() or key != key.strip() for key in getattr(self, name)):
                message = f"{name} holds an empty key, or one with spaces or non-ASCII characters"
                raise SettingsError(message, param=name)
        self._check_tls()
        self._check_cors()

    def _check_tls(self) -> None:
        _check("ssl_cert_reqs", self.ssl_cert_reqs, is_right=self.ssl_cert_reqs in (0, 1, 2), wanted="0, 1 or 2")
        for name in ("ssl_keyfile", "ssl_ca_certs"):
            if getattr(self, name) is not None and self.ssl_certfile is None:
                raise SettingsError(f"{name} is given without ssl_certfile, so there is no TLS", param=name)
        if self.ssl_cert_reqs and self.ssl_ca_certs is None:
            message = f"ssl_cert_reqs is {self.ssl_cert_reqs}, but ssl_ca_certs names nothing to check against"
            raise SettingsError(message, param="ssl_cert_reqs")

    def _check_cors(self) -> None:
        for origin in self.allowed_origins:
            is_right = origin == "*" or ("://" in origin and not origin.endswith("/"))
            _check("allowed_origins", origin, is_right=is_right, wanted="* or SCHEME://HOST[:PORT]")
        if self.allow_credentials and "*" in self.allowed_origins:
            message = "with allow_credentials any page could use its visitors' credentials if an origin is *; name them"
            raise SettingsError(message, param="allow_credentials")


_COUNTS = (
    "max_connections",
    "max_head_bytes",
    "max_body_bytes",
    "max_total_body_bytes",
    "max_concurrent_requests",
    "max_prompts",
    "max_inputs",
    "max_lora_modules",
)
_DEADLINES = ("head_timeout_s", "body_timeout_s", "write_timeout_s", "keep_alive_s", "health_interval_s")


def _check(name: str, value: float | str, *, is_right: bool, wanted: str) -> None:
    if not is_right:
        raise SettingsError(f"{name} is {value}, not {wanted}", param=name)
