"""The board on which engines say where they are, and from which gateways read it. A deployment of one replica.

Engines write themselves down again and again; who stops is forgotten. So a board that dies and is started anew is full
again at once, and an engine that dies without a word is gone within seconds, which probes notice sooner.
"""

import time
from collections.abc import Callable

LIFETIME_S = 10.0
"""How long an entry is good."""
RENEWAL_S = 1.0
"""How often an engine writes, and a gateway reads."""


class EndpointBoard:
    """URLs of engines, each good for `LIFETIME_S`."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._until_s: dict[str, float] = {}

    async def announce(self, url: str) -> None:
        """The engine at `url` takes requests."""
        self._until_s[url] = self._now() + LIFETIME_S

    async def withdraw(self, url: str) -> None:
        """It takes no more. Idempotent."""
        self._until_s.pop(url, None)

    async def urls(self) -> list[str]:
        """Those that take requests, in a stable order."""
        now = self._now()
        self._until_s = {url: until_s for url, until_s in self._until_s.items() if until_s > now}
        return sorted(self._until_s)

    def __repr__(self) -> str:
        return f"EndpointBoard(num_endpoints={len(self._until_s)})"
