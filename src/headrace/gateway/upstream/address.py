"""Where an endpoint listens, read from its URL. Pure."""

import re
import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

from headrace.errors import SettingsError

_VISIBLE = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Scheme, host, port and path prefix of an endpoint."""

    url: str
    """As it was given, without a slash at the end."""
    host: str
    port: int
    is_tls: bool
    prefix: bytes
    """What comes before `/v1/...` in every request target; mostly empty."""

    @property
    def host_header(self) -> bytes:
        """The `Host` field of requests to it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}".encode("ascii")

    def tls(self) -> ssl.SSLContext | None:
        """A fresh TLS context, or None for plain HTTP."""
        return ssl.create_default_context() if self.is_tls else None


def parse_address(url: str, *, param: str = "endpoint") -> Address:
    """The address of `http[s]://host[:port][/prefix]`. A `/v1` at the end is dropped, since requests bring their own.

    Raises SettingsError naming `param` and the value.
    """
    expected = "give a URL such as http://127.0.0.1:8000"
    try:
        parts = urlsplit(url)
        port = parts.port
        (parts.hostname or "").encode("idna")  # what resolving it begins with
    except ValueError as error:
        raise SettingsError(f"{param} {url!r} is no URL ({error}); {expected}", param=param) from error
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise SettingsError(f"{param} {url!r} is not the URL of an endpoint; {expected}", param=param)
    if parts.username or not _VISIBLE.fullmatch(url):
        raise SettingsError(f"{param} {url!r} may hold no user name, no blanks and only ASCII; {expected}", param=param)
    prefix = parts.path.rstrip("/").removesuffix("/v1")
    is_tls = parts.scheme == "https"
    return Address(
        url=url.rstrip("/").removesuffix("/v1"),
        host=parts.hostname,
        port=port if port is not None else 443 if is_tls else 80,
        is_tls=is_tls,
        prefix=prefix.encode("ascii"),
    )
