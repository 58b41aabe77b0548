"""Which remote tokenizers a pool keeps, which one a request goes to, and which one makes room. Pure.

Every change is synchronous and nothing waits here, so there is no lock that a slow endpoint could hold.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from headrace.breaker import Breaker
from headrace.tokenization.remote.endpoints import RemoteEndpoint

TokenizerT = TypeVar("TokenizerT")


class EntryKey(NamedTuple):
    """A model at an endpoint."""

    model: str
    url: str


@dataclass(slots=True, eq=False, kw_only=True)
class Entry(Generic[TokenizerT]):
    """One remote tokenizer and how it is doing."""

    key: EntryKey
    tokenizer: TokenizerT
    breaker: Breaker
    last_used_s: float
    is_healthy: bool = True
    why_unhealthy: str | None = None
    num_in_flight: int = 0
    num_chosen: int = 0

    def can_serve(self, now: float) -> bool:
        """Whether a request may go there."""
        return self.is_healthy and self.breaker.allows(now)

    def has_expired(self, now: float, *, ttl_s: float) -> bool:
        """Whether nobody has wanted it for `ttl_s`."""
        return self.num_in_flight == 0 and now >= self.last_used_s + ttl_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate(Generic[TokenizerT]):
    """An endpoint that discovery offers, and its entry if it has one."""

    endpoint: RemoteEndpoint
    url: str
    entry: Entry[TokenizerT] | None


@dataclass(slots=True)
class Entries(Generic[TokenizerT]):
    """The entries of a pool, at most `max_entries` of them."""

    max_entries: int
    _by_key: dict[EntryKey, Entry[TokenizerT]] = field(default_factory=dict)

    def get(self, key: EntryKey) -> Entry[TokenizerT] | None:
        """The entry of `key`."""
        return self._by_key.get(key)

    def all(self) -> tuple[Entry[TokenizerT], ...]:
        """Every entry, at this moment."""
        return tuple(self._by_key.values())

    def add(self, entry: Entry[TokenizerT]) -> None:
        """Keep `entry`. There must be room: see `victim`."""
        assert entry.key not in self._by_key, entry.key
        assert len(self._by_key) < self.max_entries, self
        self._by_key[entry.key] = entry

    def remove(self, entry: Entry[TokenizerT]) -> None:
        """Forget `entry`, if it is still there."""
        if self._by_key.get(entry.key) is entry:
            del self._by_key[entry.key]

    def has_room(self) -> bool:
        """Whether `add` may be called."""
        return len(self._by_key) < self.max_entries

    def victim(self) -> Entry[TokenizerT] | None:
        """The entry that was not used for longest and that nobody uses; None when all are in use."""
        idle = [entry for entry in self._by_key.values() if entry.num_in_flight == 0]
        return min(idle, key=lambda entry: entry.last_used_s, default=None)

    def __len__(self) -> int:
        return len(self._by_key)


def best(
    candidates: Sequence[Candidate[TokenizerT]], *, tried: Collection[str], now: float
) -> Candidate[TokenizerT] | None:
    """The candidate that a request goes to: one not in `tried` if there is one, then the one with least in flight (as
    discovery counts and as the pool does), then the one chosen least. None when none can serve."""
    able = [candidate for candidate in candidates if candidate.entry is None or candidate.entry.can_serve(now)]
    return min(able, key=lambda candidate: _rank(candidate, tried), default=None)


def _rank(candidate: Candidate[TokenizerT], tried: Collection[str]) -> tuple[bool, int, int]:
    entry = candidate.entry
    num_ours, num_chosen = (0, 0) if entry is None else (entry.num_in_flight, entry.num_chosen)
    return candidate.url in tried, candidate.endpoint.num_in_flight + num_ours, num_chosen
