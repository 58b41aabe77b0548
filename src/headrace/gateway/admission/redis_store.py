"""Redis as the keeper of counts: calls the scripts, and turns its errors into one of ours. Needs the extra `redis`."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, cast

from headrace.errors import HeadraceError, SettingsError
from headrace.gateway.admission.budget import Window
from headrace.gateway.admission.keys import ApiKey
from headrace.gateway.admission.limits import Hold, KeyLimits, Levels
from headrace.gateway.admission.shared_scripts import LEVELS, RENEW, SETTLE, TAKE
from headrace.gateway.admission.usage_totals import FIELDS, ModelTotals

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from redis.commands.core import AsyncScript

_PREFIX = "headrace"
_MAX_CONNECTIONS = 64
_KEPT_AFTER_WINDOW_S = 86400


class StateUnavailableError(HeadraceError):
    """The shared state cannot be reached, or did not answer in time."""

    status_hint = 503
    default_code = "shared_state_unavailable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What some requests of one key have used, to be settled once under its `name`."""

    name: str
    key: ApiKey
    windows: tuple[Window, ...]
    leases: tuple[str, ...]
    num_tokens: int
    cost: int
    totals: Mapping[str, ModelTotals] = field(default_factory=dict)


class LimitStore(Protocol):
    """What gateways share. Every call raises StateUnavailableError when nobody answers in time."""

    async def take(
        self, key: ApiKey, hold: Hold, *, lease: str, ttl_s: float, windows: Sequence[Window]
    ) -> tuple[bool, Levels]:
        """Hold under `lease` if it is within the key's limits: whether it is, and the levels before."""

    async def settle(self, batch: Batch) -> None:
        """Count `batch`; once, however often it is sent."""

    async def renew(self, key: ApiKey, leases: Sequence[str], *, ttl_s: float) -> None:
        """Keep `leases` for longer."""

    async def read(self, key: ApiKey, *, windows: Sequence[Window]) -> tuple[Levels, dict[str, ModelTotals]]:
        """Levels and totals of `key`."""

    async def aclose(self) -> None:
        """Close the connections. Idempotent."""


class RedisStore:
    """A LimitStore in Redis. `now_us` stands in for the server's clock."""

    def __init__(self, client: "Redis", *, now_us: Callable[[], int] | None = None) -> None:
        self._client = client
        self._now_us = now_us or (lambda: 0)
        self._take = client.register_script(TAKE)
        self._levels = client.register_script(LEVELS)
        self._settle = client.register_script(SETTLE)
        self._renew = client.register_script(RENEW)

    async def take(
        self, key: ApiKey, hold: Hold, *, lease: str, ttl_s: float, windows: Sequence[Window]
    ) -> tuple[bool, Levels]:
        limits = key.limits
        amounts = [budget.amount for budget in limits.budgets]
        own = [lease_member(lease, hold), int(ttl_s * 1e6), hold.num_tokens, hold.cost, limits.concurrent_requests or 0]
        reply = await self._run(self._take, _level_keys(key, windows), [*self._clock(limits), *own, *amounts])
        return reply[0] == 1, _levels_of(reply)

    async def settle(self, batch: Batch) -> None:
        keys = [*_level_keys(batch.key, ()), _key(batch.key, "batch", batch.name), _key(batch.key, "totals")]
        keys += [_key(batch.key, "spent", window.name) for window in batch.windows]
        fields = [
            item
            for model, totals in batch.totals.items()
            for name in FIELDS
            for item in (f"{name}:{model}", getattr(totals, name))
        ]
        ends = [0 if window.end_s is None else int(window.end_s) + _KEPT_AFTER_WINDOW_S for window in batch.windows]
        arguments = [*self._clock(batch.key.limits), batch.num_tokens, batch.cost, len(batch.leases), *batch.leases]
        await self._run(self._settle, keys, [*arguments, len(fields) // 2, *fields, *ends])

    async def renew(self, key: ApiKey, leases: Sequence[str], *, ttl_s: float) -> None:
        await self._run(self._renew, [_key(key, "leases")], [int(ttl_s * 1e6), *leases])

    async def read(self, key: ApiKey, *, windows: Sequence[Window]) -> tuple[Levels, dict[str, ModelTotals]]:
        reply = await self._run(self._levels, _level_keys(key, windows), self._clock(key.limits))
        with _translated():
            fields = await self._client.hgetall(_key(key, "totals"))
        totals: dict[str, ModelTotals] = {}
        for field_name, amount in fields.items():
            name, _, model = cast("bytes", field_name).decode().partition(":")
            setattr(totals.setdefault(model, ModelTotals()), name, int(amount))
        return _levels_of(reply), totals

    async def aclose(self) -> None:
        await self._client.aclose()

    async def _run(self, script: "AsyncScript", keys: Sequence[str], arguments: Sequence[object]) -> list[bytes | int]:
        with _translated():
            reply = await script(keys=list(keys), args=[str(argument) for argument in arguments])
        return reply if isinstance(reply, list) else [reply]

    def _clock(self, limits: KeyLimits) -> list[int]:
        return [self._now_us(), limits.requests_per_minute or 0, limits.tokens_per_minute or 0]

    def __repr__(self) -> str:
        return "RedisStore()"


def connect(url: str, *, timeout_s: float) -> RedisStore:
    """A store on the server of `url` (redis://, rediss:// or unix://); nothing is sent yet.

    Raises SettingsError for what is no such URL, and when the package `redis` is not installed.
    """
    try:
        from redis.asyncio import BlockingConnectionPool, Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
    except ImportError as error:
        raise SettingsError("state: Redis needs a package: pip install 'headrace[redis]'", param="state") from error
    try:
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=_MAX_CONNECTIONS,
            timeout=timeout_s,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 1),  # an idle connection that the server closed is no outage
        )
    except ValueError as error:
        raise SettingsError(f"state: this is no URL of a Redis server: {error}", param="state") from error
    return RedisStore(Redis.from_pool(pool))


def lease_member(lease: str, hold: Hold) -> str:
    """How a lease stands in Redis."""
    return f"{lease}:{hold.num_tokens}:{hold.cost}"


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    from redis.exceptions import RedisError

    try:
        yield
    except (RedisError, OSError, TimeoutError) as error:
        raise StateUnavailableError(f"Redis: {error or type(error).__name__}") from error


def _key(key: ApiKey, *parts: str) -> str:
    return ":".join((_PREFIX, "{" + key.name + "}", *parts))


def _level_keys(key: ApiKey, windows: Sequence[Window]) -> list[str]:
    return [_key(key, "state"), _key(key, "leases"), *(_key(key, "spent", window.name) for window in windows)]


def _levels_of(reply: Sequence[bytes | int]) -> Levels:
    _, num_open, held_tokens, held_cost, requests_debt, tokens_debt, *spent = map(int, reply)
    return Levels(
        num_open=num_open,
        held_tokens=held_tokens,
        held_cost=held_cost,
        requests_debt=requests_debt,
        tokens_debt=tokens_debt,
        spent=tuple(spent),
    )
