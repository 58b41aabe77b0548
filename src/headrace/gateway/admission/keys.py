"""The API keys of a gateway, and who a given key belongs to. Pure. The keys themselves are nowhere kept.

Only the SHA-256 of a key is known. That is enough for keys of 256 random bits, as `key_file` makes them: there is
nothing to guess, so nothing for a slow hash to slow down, and a request pays a microsecond instead of milliseconds.
"""

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headrace.errors import AuthenticationError
from headrace.gateway.admission.limits import NO_LIMITS, KeyLimits
from headrace.gateway.admission.priority import PriorityClass
from headrace.gateway.http.head_facts import Headers

_NUM_INDEX_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """One key and what it may do. Its name stands in logs and on the dashboard, and keeps its account when the key is
    renewed."""

    name: str
    digest: bytes = field(repr=False)
    created_s: float | None = None
    """Seconds since the epoch."""
    expires_s: float | None = None
    models: frozenset[str] | None = None
    """Models that it may use; None: all."""
    priority: PriorityClass = "interactive"
    """The highest class that its requests may have."""
    weight: int = 1
    """Its share of a queue, beside other keys."""
    limits: KeyLimits = NO_LIMITS

    def may_use(self, model: str) -> bool:
        """Whether requests for `model` are allowed."""
        return self.models is None or model in self.models


ANONYMOUS = ApiKey(name="anonymous", digest=b"")
"""Whoever asks a gateway that has no keys."""


class KeyRing:
    """All keys, by digest.

    The index is the first eight bytes of the digest, which nobody can steer without trying out SHA-256; the digests are
    then compared whole and in constant time.
    """

    def __init__(self, keys: Iterable[ApiKey]) -> None:
        self.keys = {key.name: key for key in keys}
        self._by_index = {key.digest[:_NUM_INDEX_BYTES]: key for key in self.keys.values()}

    def find(self, digest: bytes | None, *, now_s: float) -> ApiKey:
        """The key of which the digest was given. Raises AuthenticationError for none, an unknown one, and one that has
        expired."""
        if not digest:
            raise AuthenticationError("This gateway wants an API key: send it as Authorization: Bearer KEY.")
        key = self._by_index.get(digest[:_NUM_INDEX_BYTES], ANONYMOUS)
        if not hmac.compare_digest(digest, key.digest):
            raise AuthenticationError("This API key is not known here; check it, or ask whoever runs the gateway.")
        if key.expires_s is not None and now_s >= key.expires_s:
            raise AuthenticationError(
                f"The API key {key.name!r} has expired; ask for a new one.", code="expired_api_key"
            )
        return key

    def __len__(self) -> int:
        return len(self.keys)

    def __repr__(self) -> str:
        return f"KeyRing(num_keys={len(self.keys)})"


def given_key(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """What stands in `Authorization: Bearer KEY`, or else in `x-api-key`, as Anthropic's clients send it."""
    values: Mapping[bytes, bytes] = {name: value for name, value in headers if name in KEY_HEADERS}
    scheme, _, bearer = values.get(b"authorization", b"").partition(b" ")
    if scheme.lower() == b"bearer" and bearer.strip():
        return bearer.strip()
    return values.get(b"x-api-key", b"").strip() or None


def given_digest(headers: Headers) -> bytes | None:
    """The digest of the given key; None where none is given."""
    given = given_key(headers)
    return None if given is None else digest_of(given)


KEY_HEADERS = frozenset({b"authorization", b"x-api-key"})
"""The fields that can hold a key; where the gateway has keys of its own, they go no further."""


def without_keys(headers: Headers) -> Headers:
    """`headers` without fields that can hold a key."""
    return [field for field in headers if field[0] not in KEY_HEADERS]


def digest_of(key: bytes) -> bytes:
    """What is kept of `key`."""
    return hashlib.sha256(key).digest()


def fingerprint_of(digest: bytes) -> str:
    """A few characters to tell keys apart in a list."""
    return digest.hex()[:8]
