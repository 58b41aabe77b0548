"""The settings of remote tokenizers and of their pool."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from headrace.errors import SettingsError
from headrace.units import NumBytes, Seconds

_MIB = 1024 * 1024

RemoteEngine: TypeAlias = Literal["vllm", "sglang"]
"""Whose `/tokenize` and `/detokenize` an endpoint speaks. Headrace's own server speaks vLLM's."""

FallbackPolicy: TypeAlias = Literal["local", "fail"]
"""What happens to a request that no endpoint could tokenize."""


@dataclass(frozen=True, kw_only=True)
class RemoteTokenizerSettings:
    """How an endpoint is asked."""

    engine: RemoteEngine = "vllm"
    """Whose bodies to send, where discovery does not say it."""

    request_timeout_s: Seconds = 10.0
    """Time for one request with all its attempts and the pauses between them."""

    connect_timeout_s: Seconds = 2.0
    """Time to connect to an endpoint, TLS included."""

    max_retries: int = 3
    """Attempts after the first, for failures that another attempt may mend; in a pool at another endpoint if it can."""

    retry_base_s: Seconds = 0.1
    """Upper bound of the pause before the first retry; it doubles from retry to retry. The pause itself is random."""

    retry_max_s: Seconds = 5.0
    """Upper bound that the doubling ends at."""

    retry_after_max_s: Seconds = 2.0
    """An endpoint's Retry-After is honoured up to here."""

    api_key: str | None = field(default=None, repr=False)
    """Sent as a bearer token."""

    tls_verify: bool = True
    """Whether an https endpoint must show a certificate that can be trusted."""

    tls_ca_file: str | None = None
    """Certificates to trust, in PEM, in place of the system's."""

    tls_cert_file: str | None = None
    """Certificate to show to endpoints that ask for one, in PEM."""

    tls_key_file: str | None = None
    """Its private key, where it is not in the same file."""

    max_request_bytes: NumBytes = 16 * _MIB
    """Size of a request's body; what is longer is refused before it is sent."""

    max_response_bytes: NumBytes = 16 * _MIB
    """Size of an answer's body; what is longer is an error of the endpoint."""

    max_connections: int = 100
    """Connections open at a time, to all endpoints together; requests wait for one within their time."""

    max_idle_connections: int = 10
    """Connections kept open while nothing is sent."""

    def __post_init__(self) -> None:
        for name in (
            "request_timeout_s",
            "connect_timeout_s",
            "retry_base_s",
            "retry_max_s",
            "max_request_bytes",
            "max_response_bytes",
            "max_connections",
        ):
            _check_positive(self, name)
        for name in ("max_retries", "retry_after_max_s", "max_idle_connections"):
            if (value := getattr(self, name)) < 0:
                raise SettingsError(f"{name} is {value}; it must be 0 or more", param=name)
        self._check_api_key()
        self._check_tls()

    def _check_api_key(self) -> None:
        if self.api_key is not None and (not self.api_key.isascii() or not self.api_key.isprintable()):
            raise SettingsError("api_key has characters that a header cannot carry", param="api_key")

    def _check_tls(self) -> None:
        if self.tls_key_file is not None and self.tls_cert_file is None:
            raise SettingsError("tls_key_file is set, but tls_cert_file is not; give both", param="tls_key_file")
        if self.tls_ca_file is not None and not self.tls_verify:
            raise SettingsError("tls_ca_file is set, but tls_verify is off; set one of them", param="tls_ca_file")
        for name in ("tls_ca_file", "tls_cert_file", "tls_key_file"):
            if (path := getattr(self, name)) is not None and not Path(path).is_file():
                raise SettingsError(f"{name} {path!r} is not a file", param=name)


@dataclass(frozen=True, kw_only=True)
class RemotePoolSettings:
    """When endpoints are asked, and what is kept of them."""

    enabled: bool = False
    """Whether endpoints tokenize; without, the local tokenizer does."""

    endpoint_template: str = "http://%s:8000"
    """The URL of an endpoint that discovery names by its host alone, which stands for `%s`."""

    health_period_s: Seconds = 30.0
    """Time between two health checks of a tokenizer."""

    health_timeout_s: Seconds = 5.0
    """Time for an endpoint to answer a health check."""

    idle_ttl_s: Seconds = 300.0
    """A tokenizer that was not asked for this long is dropped."""

    max_tokenizers: int = 100
    """Tokenizers in the pool, one for each model at each endpoint; the one that was idle longest makes room."""

    breaker_failures: int = 3
    """Failures in a row after which an endpoint is not asked for a while."""

    breaker_pause_s: Seconds = 1.0
    """How long that is at first; it doubles with every failed trial."""

    breaker_max_pause_s: Seconds = 30.0
    """Where that doubling ends."""

    fallback: FallbackPolicy = "local"
    """`local`: what no endpoint could tokenize goes to the local tokenizer. `fail`: it is refused."""

    parity_share: float = 0.01
    """Share of the remote answers that are compared with the local tokenizer, in the background."""

    max_parity_checks: int = 4
    """Comparisons at a time; a sample that finds no place is left out."""

    def __post_init__(self) -> None:
        for name in (
            "health_period_s",
            "health_timeout_s",
            "idle_ttl_s",
            "max_tokenizers",
            "breaker_failures",
            "breaker_pause_s",
            "max_parity_checks",
        ):
            _check_positive(self, name)
        if self.breaker_max_pause_s < self.breaker_pause_s:
            raise SettingsError(
                f"breaker_max_pause_s is {self.breaker_max_pause_s}; it must not be less than breaker_pause_s, "
                f"{self.breaker_pause_s}",
                param="breaker_max_pause_s",
            )
        if not 0 <= self.parity_share <= 1:
            raise SettingsError(f"parity_share is {self.parity_share}; it must be from 0 to 1", param="parity_share")
        if self.endpoint_template.count("%s") != 1:
            raise SettingsError(
                f"endpoint_template {self.endpoint_template!r} must have one %s, where the host goes",
                param="endpoint_template",
            )


def _check_positive(settings: object, name: str) -> None:
    if not (value := getattr(settings, name)) > 0:
        raise SettingsError(f"{name} is {value}; it must be more than 0", param=name)
