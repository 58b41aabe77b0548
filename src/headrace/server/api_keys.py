"""Keys that requests carry, and whether one is known. Says nothing of which routes want one."""

import hashlib
import hmac
from collections.abc import Sequence

from starlette.datastructures import Headers


class ApiKeys:
    """The keys are kept as digests: of equal length and each compared whole, so that the time taken tells nothing."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [_digest(key) for key in keys]

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self._digests)

    def __repr__(self) -> str:
        return f"ApiKeys({len(self._digests)} keys)"

    def are_carried(self, headers: Headers) -> bool:
        """Whether one of them stands in `Authorization: Bearer KEY`, or in `x-api-key` as Anthropic's clients do it."""
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        given = [headers.get("x-api-key", "")]
        if scheme.lower() == "bearer":
            given.append(bearer)
        known = [self._is_known(key.strip()) for key in given]
        return any(known)

    def _is_known(self, key: str) -> bool:
        digest = _digest(key)
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return any(matches)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
