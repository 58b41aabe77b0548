"""The settings of the engine server."""

from dataclasses import dataclass

from headrace.errors import SettingsError
from headrace.units import NumBytes, Seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerSettings:
    """How one engine is served over HTTP. Raises SettingsError, naming the field, for a value that cannot work."""

    host: str = "127.0.0.1"
    """The address to listen on; 0.0.0.0 is every interface."""

    port: int = 8000
    """The port to listen on; 0 takes a free one, which the log and `ready_file` tell."""

    ready_file: str | None = None
    """A file to write once requests are taken: JSON with `url`, `admin_url` (null here) and `pid`."""

    api_key: tuple[str, ...] = ()
    """Keys of which every request must carry one as `Authorization: Bearer`; without any, the server is open.

    /health, /metrics and /version never ask for a key.
    """

    max_body_bytes: NumBytes = 16 << 20
    """The largest request body; a longer one is refused with 413 while it arrives."""

    max_concurrent_requests: int = 1024
    """Requests worked on at once, waiting ones included; one more is refused with 503."""

    max_prompts: int = 128
    """Prompts in one request to /v1/completions."""

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
        for name in ("max_body_bytes", "max_concurrent_requests", "max_prompts"):
            value = getattr(self, name)
            _check(name, value, is_right=value >= 1, wanted="at least 1")
        for name in ("body_timeout_s", "write_timeout_s", "keep_alive_s", "health_interval_s"):
            value = getattr(self, name)
            _check(name, value, is_right=value > 0, wanted="more than 0 seconds")
        _check("drain_timeout_s", self.drain_timeout_s, is_right=self.drain_timeout_s >= 0, wanted="0 seconds or more")
        if any(not key or not key.isascii() or key != key.strip() for key in self.api_key):
            raise SettingsError(
                "api_key holds an empty key, or one with spaces or non-ASCII characters", param="api_key"
            )


def _check(name: str, value: float, *, is_right: bool, wanted: str) -> None:
    if not is_right:
        raise SettingsError(f"{name} is {value}, not {wanted}", param=name)
