"""The remote tokenizers of a pool, from discovery to eviction: made when first wanted, probed, dropped when idle.

Rules. 1: state changes without a wait in between, so there is no lock to hold. 2: each tokenizer is probed by a task of
its own; a hanging endpoint delays neither requests nor the probes of others. 3: what is in use is never dropped.
"""

import asyncio
import functools
import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from headrace.aio.tasks import TaskOwner
from headrace.breaker import Breaker, BreakerState
from headrace.errors import HeadraceError, OverloadedError, SettingsError, UpstreamError
from headrace.tokenization.remote.endpoints import EndpointSource, base_url
from headrace.tokenization.remote.entries import Candidate, Entries, Entry, EntryKey, best
from headrace.tokenization.remote.fallback import FallbackReason, RemoteUnavailableError
from headrace.tokenization.remote.instruments import RemoteInstruments
from headrace.tokenization.remote.settings import RemotePoolSettings, RemoteTokenizerSettings
from headrace.tokenization.remote.tokenizer import RemoteTokenizer, RemoteTokenizerStatistics
from headrace.tokenization.remote.transport import RemoteClosedError, RemoteTransport

_LOG = logging.getLogger(__name__)

_MAX_REMEMBERED_ADDRESSES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMemberStatistics:
    """One tokenizer of the pool."""

    tokenizer: RemoteTokenizerStatistics
    is_healthy: bool
    why_unhealthy: str | None
    breaker: BreakerState
    num_in_flight: int
    idle_s: float


class PoolMembers:
    """See the module. Belongs to one event loop."""

    def __init__(
        self,
        source: EndpointSource,
        *,
        settings: RemotePoolSettings,
        remote: RemoteTokenizerSettings,
        transport: RemoteTransport,
        instruments: RemoteInstruments,
    ) -> None:
        self._source = source
        self._settings = settings
        self._remote = remote
        self._transport = transport
        self._entries: Entries[RemoteTokenizer] = Entries(settings.max_tokenizers)
        self._instruments = instruments
        instruments.read_num_active(self._entries.__len__)
        self._owner = TaskOwner("remote tokenizers")
        self._watches: dict[EntryKey, asyncio.Task[None]] = {}
        self._url_of = functools.lru_cache(_MAX_REMEMBERED_ADDRESSES)(self._usable_url)
        self._is_closed = False

    @contextmanager
    def lease(self, model: str, *, tried: Collection[str]) -> Iterator[Entry[RemoteTokenizer]]:
        """The best member for an attempt, which the block makes; how it ends tells the member's breaker.

        Raises RemoteUnavailableError with its reason, and RemoteClosedError.
        """
        loop = asyncio.get_running_loop()
        entry = self._choose(model, tried=tried, now=loop.time())
        permit = entry.breaker.acquire(loop.time())
        entry.num_in_flight += 1
        entry.num_chosen += 1
        try:
            yield entry
            entry.breaker.succeed(permit)
        except (UpstreamError, OverloadedError):
            entry.breaker.fail(permit, loop.time())
            raise
        finally:
            entry.breaker.release(permit)
            entry.num_in_flight -= 1
            entry.last_used_s = loop.time()

    def can_serve(self, model: str) -> bool:
        """Whether an attempt could be made now."""
        return self._best(model, tried=()) is not None

    def has_untried(self, model: str, *, tried: Collection[str]) -> bool:
        """Whether it could be made at an endpoint that is not in `tried`."""
        candidate = self._best(model, tried=tried)
        return candidate is not None and candidate.url not in tried

    def _best(self, model: str, *, tried: Collection[str]) -> Candidate[RemoteTokenizer] | None:
        try:
            return best(self._candidates(model), tried=tried, now=asyncio.get_running_loop().time())
        except RemoteUnavailableError:
            return None

    def serves(self, model: str) -> bool:
        """Whether discovery knows an endpoint for `model`."""
        return bool(self._source.endpoints(model))

    def _choose(self, model: str, *, tried: Collection[str], now: float) -> Entry[RemoteTokenizer]:
        if self._is_closed:
            raise RemoteClosedError("the pool of remote tokenizers is closed; make a new one")
        candidates = self._candidates(model)
        reason: FallbackReason = "unhealthy"
        while (candidate := best(candidates, tried=tried, now=now)) is not None:
            entry = candidate.entry or self._make(candidate, model=model, now=now)
            if entry is not None:
                return entry
            reason = "pool_full"
            candidates.remove(candidate)
        raise RemoteUnavailableError(
            f"none of the {len(self._source.endpoints(model))} endpoints for {model!r} can be asked ({reason})",
            reason=reason,
        )

    def _candidates(self, model: str) -> list[Candidate[RemoteTokenizer]]:
        endpoints = self._source.endpoints(model)
        if not endpoints:
            raise RemoteUnavailableError(f"no endpoint tokenizes for {model!r}", reason="no_endpoint")
        candidates = [
            Candidate(endpoint=endpoint, url=url, entry=self._entries.get(EntryKey(model, url)))
            for endpoint in endpoints
            if (url := self._url_of(endpoint.address)) is not None
        ]
        if not candidates:
            raise RemoteUnavailableError(f"no endpoint for {model!r} has a usable address", reason="bad_address")
        return candidates

    def _usable_url(self, address: str) -> str | None:
        """The URL that `address` means; None, said once in the log, if it means none."""
        try:
            return base_url(address, template=self._settings.endpoint_template)
        except SettingsError as error:
            self._instruments.not_created()
            _LOG.warning("discovery gives a bad address: %s", error.message)
            return None

    def _make(self, candidate: Candidate[RemoteTokenizer], *, model: str, now: float) -> Entry[RemoteTokenizer] | None:
        """A new member, in the place of the one idle for longest if need be; None if all are in use."""
        if not self._entries.has_room():
            victim = self._entries.victim()
            if victim is None:
                self._instruments.not_created()
                return None
            self._drop(victim)
        entry = Entry(
            key=EntryKey(model, candidate.url),
            tokenizer=RemoteTokenizer(
                model=model,
                url=candidate.url,
                settings=self._remote,
                engine=candidate.endpoint.engine,
                transport=self._transport,
            ),
            breaker=Breaker(
                num_failures_to_open=self._settings.breaker_failures,
                pause_s=self._settings.breaker_pause_s,
                max_pause_s=self._settings.breaker_max_pause_s,
            ),
            last_used_s=now,
        )
        self._entries.add(entry)
        self._watches[entry.key] = self._owner.spawn(self._watch(entry), name=f"probes of {candidate.url}")
        self._instruments.created()
        return entry

    def _drop(self, entry: Entry[RemoteTokenizer]) -> None:
        self._entries.remove(entry)
        self._watches.pop(entry.key).cancel()

    async def _watch(self, entry: Entry[RemoteTokenizer]) -> None:
        """Probe `entry` every period, and drop it when nobody has wanted it for its time."""
        loop = asyncio.get_running_loop()
        ttl_s = self._settings.idle_ttl_s
        next_probe_s = loop.time() + self._settings.health_period_s
        while True:
            is_idle = entry.num_in_flight == 0
            due_s = min(next_probe_s, entry.last_used_s + ttl_s) if is_idle else next_probe_s
            await asyncio.sleep(max(0.0, due_s - loop.time()))
            if entry.has_expired(loop.time(), ttl_s=ttl_s):
                self._drop(entry)
                return
            if loop.time() >= next_probe_s:
                await self._probe(entry)
                next_probe_s = loop.time() + self._settings.health_period_s

    async def _probe(self, entry: Entry[RemoteTokenizer]) -> None:
        try:
            await entry.tokenizer.check_health(timeout_s=self._settings.health_timeout_s)
        except RemoteClosedError:
            return
        except HeadraceError as error:
            if entry.is_healthy:
                self._instruments.became_unhealthy()
                _LOG.warning("the tokenizer of %s at %s is unhealthy: %s", *entry.key, error.message)
            entry.is_healthy, entry.why_unhealthy = False, error.message
            return
        if not entry.is_healthy:
            _LOG.info("the tokenizer of %s at %s is well again", *entry.key)
        entry.is_healthy, entry.why_unhealthy = True, None

    def statistics(self) -> tuple[PoolMemberStatistics, ...]:
        """Every member at this moment. Call it in the loop."""
        now = asyncio.get_running_loop().time()
        return tuple(
            PoolMemberStatistics(
                tokenizer=entry.tokenizer.statistics(),
                is_healthy=entry.is_healthy,
                why_unhealthy=entry.why_unhealthy,
                breaker=entry.breaker.state(now),
                num_in_flight=entry.num_in_flight,
                idle_s=0.0 if entry.num_in_flight else now - entry.last_used_s,
            )
            for entry in self._entries.all()
        )

    async def aclose(self) -> None:
        """End the probes and refuse what comes. Idempotent."""
        self._is_closed = True
        await self._owner.aclose()

    def __len__(self) -> int:
        return len(self._entries)
