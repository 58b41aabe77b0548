"""Limits that gateways count together: the logic on a fake store, and the scripts on a real Redis."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from decimal import Decimal
from pathlib import Path

import pytest

from headrace.errors import SettingsError
from headrace.gateway.admission.account import Account
from headrace.gateway.admission.bill import NOTHING, Bill
from headrace.gateway.admission.budget import Budget, Window, window_at
from headrace.gateway.admission.keys import ApiKey
from headrace.gateway.admission.limits import Hold, KeyLimits, Levels
from headrace.gateway.admission.local_state import LocalState
from headrace.gateway.admission.redis_store import (
    Batch,
    RedisStore,
    StateUnavailableError,
    connect,
    lease_member,
)
from headrace.gateway.admission.refusals import LimitError
from headrace.gateway.admission.settings import AdmissionSettings
from headrace.gateway.admission.shared_state import SharedState
from headrace.gateway.admission.usage_totals import ModelTotals
from headrace.testing.fake_upstream import FakeUpstream, completes
from headrace.testing.virtual_time import run_virtual
from tests.gateway.admission.redis_server import PROGRAM, RedisServer
from tests.gateway.admission.test_admission_over_sockets import ALICE, PRICE, ask, keys_file, usage_of_key
from tests.gateway.support import running_gateway

needs_redis = pytest.mark.skipif(PROGRAM is None, reason="redis-server is not installed (apt-get install redis-server)")

LIMITS = KeyLimits(
    requests_per_minute=7,
    tokens_per_minute=1000,
    concurrent_requests=4,
    budgets=(Budget(period="day", amount=900), Budget(period="total", amount=3000)),
)
KEY = ApiKey(name="k", digest=b"", limits=LIMITS)
NO_LIMIT_KEY = ApiKey(name="k", digest=b"")
HOLD = Hold(num_tokens=100, cost=50)
BILL = Bill(prompt_tokens=20, completion_tokens=10, cost=15, source="usage")


class FakeStore:
    """A LimitStore in memory that can be away, be slow, or lose its answers."""

    def __init__(self) -> None:
        self.account = Account()
        self.is_away = False
        self.loses_answers = False
        self.gate: asyncio.Event | None = None
        self.leases: dict[str, Hold] = {}
        self.settled: dict[str, Batch] = {}
        self.num_asked = 0
        self.is_closed = False

    async def _reach(self) -> None:
        self.num_asked += 1
        if self.gate is not None:
            await self.gate.wait()
        if self.is_away:
            raise StateUnavailableError("away")

    async def take(
        self, key: ApiKey, hold: Hold, *, lease: str, ttl_s: float, windows: Sequence[Window]
    ) -> tuple[bool, Levels]:
        await self._reach()
        levels = self.account.levels(key.limits, windows=windows, now_us=0)
        is_taken = self.account.take(hold, key.limits, windows=windows, now_us=0) is not None
        if is_taken:
            self.leases[lease_member(lease, hold)] = hold
        if self.loses_answers:
            raise StateUnavailableError("the answer was lost")
        return is_taken, levels

    async def settle(self, batch: Batch) -> None:
        await self._reach()
        if batch.name not in self.settled:
            self.settled[batch.name] = batch
            for lease in batch.leases:
                if (hold := self.leases.pop(lease, None)) is not None:
                    self.account.let_go(hold)
        if self.loses_answers:
            raise StateUnavailableError("the answer was lost")

    async def renew(self, key: ApiKey, leases: Sequence[str], *, ttl_s: float) -> None:
        await self._reach()

    async def read(self, key: ApiKey, *, windows: Sequence[Window]) -> tuple[Levels, dict[str, ModelTotals]]:
        await self._reach()
        return self.account.levels(key.limits, windows=windows, now_us=0), {}

    async def aclose(self) -> None:
        self.is_closed = True

    @property
    def spent(self) -> int:
        return sum(batch.cost for batch in self.settled.values())


def shared(store: FakeStore) -> SharedState:
    def clock() -> float:
        return asyncio.get_running_loop().time()

    return SharedState(store, local=LocalState(clock=clock), clock=clock, timeout_s=0.25)


def test_what_was_used_reaches_the_store_and_nothing_stays_held() -> None:
    async def scenario() -> None:
        store = FakeStore()
        state = shared(store)
        await state.start()
        grants = [await state.take(KEY, HOLD) for _ in range(3)]
        for grant in grants:
            state.settle(grant, "m", BILL)
        await state.aclose()

        assert (store.spent, store.leases, store.account.is_idle, store.is_closed) == (45, {}, True, True)

    run_virtual(scenario())


def test_while_the_store_is_away_the_gateway_limits_by_itself_and_tells_it_all_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        store = FakeStore()
        state = shared(store)
        await state.start()
        held = await state.take(KEY, HOLD)
        store.is_away = True
        alone = [await state.take(KEY, HOLD) for _ in range(4)]
        assert all(grant.lease is None for grant in alone)
        assert state.why_local == "away"
        with pytest.raises(LimitError):
            await state.take(KEY, HOLD)
        num_asked = store.num_asked
        for grant in (held, *alone):
            state.settle(grant, "m", BILL)
        assert store.num_asked <= num_asked + 1  # the breaker spares it

        store.is_away = False
        await asyncio.sleep(20)
        assert state.why_local is None
        assert (store.spent, store.leases) == (5 * 15, {})
        assert (await state.take(KEY, HOLD)).lease is not None
        await state.aclose()

    run_virtual(scenario())
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]


def test_an_answer_that_was_lost_is_counted_once() -> None:
    async def scenario() -> None:
        store = FakeStore()
        state = shared(store)
        await state.start()
        grant = await state.take(KEY, HOLD)
        store.loses_answers = True
        state.settle(grant, "m", BILL)
        await asyncio.sleep(10)
        store.loses_answers = False
        await asyncio.sleep(30)
        assert (store.spent, len(store.settled)) == (15, 1)
        await state.aclose()

    run_virtual(scenario())


def test_a_hold_whose_answer_was_lost_is_let_go() -> None:
    async def scenario() -> None:
        store = FakeStore()
        state = shared(store)
        await state.start()
        store.loses_answers = True
        grant = await state.take(KEY, HOLD)
        assert grant.lease is None
        store.loses_answers = False
        await asyncio.sleep(30)
        assert store.leases == {}
        state.settle(grant, "m", NOTHING)
        await state.aclose()

    run_virtual(scenario())


def test_a_store_that_hangs_holds_nobody_up_for_longer_than_its_time() -> None:
    async def scenario() -> None:
        store = FakeStore()
        store.gate = asyncio.Event()
        state = shared(store)
        grant = await state.take(KEY, HOLD)
        assert asyncio.get_running_loop().time() == 0.25
        assert grant.lease is None
        state.settle(grant, "m", NOTHING)
        await state.aclose()

    run_virtual(scenario())


def test_who_leaves_while_the_store_is_asked_leaves_nothing_held() -> None:
    async def scenario() -> None:
        store = FakeStore()
        store.gate = asyncio.Event()
        state = shared(store)
        await state.start()
        asking = asyncio.get_running_loop().create_task(state.take(KEY, HOLD))
        await asyncio.sleep(0.1)
        asking.cancel()
        await asyncio.wait([asking])
        store.gate.set()
        await asyncio.sleep(1)
        assert asking.cancelled()
        assert store.num_asked >= 2
        assert (store.leases, store.account.is_idle) == ({}, True)
        await state.aclose()

    run_virtual(scenario())


class SlowStore(FakeStore):
    """Answers after `pause_s`, and remembers how many questions it had at a time."""

    def __init__(self, pause_s: float) -> None:
        super().__init__()
        self.pause_s = pause_s
        self.num_at_once = self.most_at_once = 0

    async def _reach(self) -> None:
        self.num_at_once += 1
        self.most_at_once = max(self.most_at_once, self.num_at_once)
        await asyncio.sleep(self.pause_s)
        self.num_at_once -= 1
        await super()._reach()


def test_a_burst_is_asked_for_in_turns_and_is_no_outage() -> None:
    async def scenario() -> None:
        store = SlowStore(0.1)
        state = shared(store)
        grants = await asyncio.gather(*[state.take(NO_LIMIT_KEY, HOLD) for _ in range(300)])
        assert all(grant.lease is not None for grant in grants)
        assert (state.why_local, store.most_at_once) == (None, 32)
        for grant in grants:
            state.settle(grant, "m", NOTHING)
        await state.aclose()
        assert store.leases == {}

    run_virtual(scenario())


def test_nobody_waits_for_long_to_ask_a_slow_store() -> None:
    async def scenario() -> None:
        store = SlowStore(0.2)
        state = shared(store)
        grants = await asyncio.gather(*[state.take(NO_LIMIT_KEY, HOLD) for _ in range(1000)])
        assert asyncio.get_running_loop().time() < 2.5
        assert 0 < sum(grant.lease is None for grant in grants) < 1000
        for grant in grants:
            state.settle(grant, "m", NOTHING)
        await state.aclose()
        assert store.leases == {}

    run_virtual(scenario())


def test_what_no_limit_bounds_is_not_told_the_store() -> None:
    async def scenario() -> None:
        store = FakeStore()
        state = shared(store)
        huge = Hold(num_tokens=10**30, completion_tokens=10**29, cost=10**40)
        grant = await state.take(NO_LIMIT_KEY, huge)
        assert list(store.leases.values()) == [Hold()]
        assert grant.hold == huge
        state.settle(grant, "m", BILL)
        await state.aclose()
        assert store.leases == {}

    run_virtual(scenario())


def test_the_end_of_a_gateway_does_not_wait_out_an_outage_that_is_over() -> None:
    async def scenario() -> None:
        store = FakeStore()
        state = shared(store)
        grant = await state.take(KEY, HOLD)
        store.is_away = True
        alone = await state.take(KEY, HOLD)
        store.is_away = False
        for one in (grant, alone):
            state.settle(one, "m", BILL)
        await state.aclose()
        assert (store.spent, store.leases, store.is_closed) == (2 * 15, {}, True)

    run_virtual(scenario())


def test_what_was_used_in_an_outage_counts_in_budgets_that_came_meanwhile() -> None:
    async def scenario() -> None:
        store = FakeStore()
        store.is_away = True
        state = shared(store)
        for key in (NO_LIMIT_KEY, KEY, NO_LIMIT_KEY):
            state.settle(await state.take(key, HOLD), "m", BILL)
        store.is_away = False
        await state.aclose()
        (batch,) = store.settled.values()
        assert batch.cost == 3 * 15
        assert [window.name for window in batch.windows] == ["day-1970-01-01", "total"]

    run_virtual(scenario())


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


class Clock:
    """Microseconds that a test sets."""

    now_us = 1_800_000_000_000_000


@pytest.fixture
async def store(redis: RedisServer) -> AsyncIterator[RedisStore]:
    store = connect(redis.url, timeout_s=5.0)
    store._now_us = lambda: Clock.now_us
    await store._client.flushall()
    yield store
    await store.aclose()


def windows_at(now_us: int) -> tuple[Window, ...]:
    return tuple(window_at(budget.period, now_us / 1e6) for budget in LIMITS.budgets)


@needs_redis
@pytest.mark.integration
@pytest.mark.parametrize("seed", range(6))
async def test_redis_decides_as_the_account_in_memory_does(store: RedisStore, seed: int) -> None:
    rng = random.Random(seed)
    account = Account()
    running: list[tuple[str, Hold]] = []
    spent = 0
    for number in range(120):
        Clock.now_us += rng.choice([0, 1, 500_000, 3_000_000, 20_000_000, 15_000_000_000])
        now_us, windows = Clock.now_us, windows_at(Clock.now_us)
        if running and rng.random() < 0.5:
            lease, hold = running.pop(rng.randrange(len(running)))
            num_tokens, cost = rng.randint(0, hold.num_tokens), rng.randint(0, hold.cost)
            account.let_go(hold)
            account.use(num_tokens=num_tokens, cost=cost, limits=LIMITS, windows=windows, now_us=now_us)
            batch = Batch(
                name=f"b{number}",
                key=KEY,
                windows=windows,
                leases=(lease_member(lease, hold),),
                num_tokens=num_tokens,
                cost=cost,
                totals={"m:1": ModelTotals(num_requests=1, cost=cost)},
            )
            spent += cost
            for _ in range(rng.randint(1, 3)):
                await store.settle(batch)
        hold = Hold(num_tokens=rng.randint(0, 600), cost=rng.randint(0, 300))
        levels = account.levels(LIMITS, windows=windows, now_us=now_us)
        expected = account.take(hold, LIMITS, windows=windows, now_us=now_us) is not None, levels
        found = await store.take(KEY, hold, lease=f"l{number}", ttl_s=10**6, windows=windows)
        assert found == expected
        if found[0]:
            running.append((f"l{number}", hold))
    _, totals = await store.read(KEY, windows=windows_at(Clock.now_us))
    assert totals["m:1"].cost == spent


@needs_redis
@pytest.mark.integration
async def test_what_a_dead_gateway_held_lapses(store: RedisStore) -> None:
    windows = windows_at(Clock.now_us)
    for number in range(4):
        is_taken, _ = await store.take(KEY, HOLD, lease=f"l{number}", ttl_s=60.0, windows=windows)
        assert is_taken
    kept = lease_member("l0", HOLD)
    assert not (await store.take(KEY, HOLD, lease="l4", ttl_s=60.0, windows=windows))[0]
    Clock.now_us += 30_000_000
    await store._client.zadd("headrace:{k}:leases", {kept: Clock.now_us + 60_000_000}, xx=True)
    Clock.now_us += 30_000_000
    levels, _ = await store.read(KEY, windows=windows)

    assert (levels.num_open, levels.held_tokens, levels.held_cost) == (1, HOLD.num_tokens, HOLD.cost)


@needs_redis
@pytest.mark.integration
async def test_leases_are_renewed_if_they_are_there(store: RedisStore) -> None:
    await store.take(KEY, HOLD, lease="a", ttl_s=60.0, windows=windows_at(Clock.now_us))
    members = [lease_member("a", HOLD), lease_member("gone", HOLD)]
    before = await store._client.zscore("headrace:{k}:leases", members[0])
    await store.renew(KEY, members, ttl_s=10**6)

    assert await store._client.zcard("headrace:{k}:leases") == 1
    assert await store._client.zscore("headrace:{k}:leases", members[0]) != before


@needs_redis
@pytest.mark.integration
async def test_one_request_of_any_size_takes_the_limits_from_nobody(store: RedisStore, redis, tmp_path: Path) -> None:
    admission = AdmissionSettings(keys_file=keys_file(tmp_path), price=PRICE, state=redis.url, state_timeout_s=5.0)
    async with (
        FakeUpstream(behaviour=completes("x")) as upstream,
        running_gateway(upstream, admission=admission) as gateway,
    ):
        answers = [await ask(gateway, n=9 * 10**18, max_tokens=10**6), await ask(gateway)]
        upstream.behaviour = completes("x", prompt_tokens=9 * 10**18, completion_tokens=9 * 10**18)
        answers += [await ask(gateway), await ask(gateway)]

        assert [(one.status, one.header("x-headrace-limits")) for one in answers] == [(200, None)] * 4
        usage = await usage_of_key(gateway)

    assert (usage["total"]["num_requests"], usage["total"]["num_estimated"]) == (4, 2)


@needs_redis
@pytest.mark.integration
async def test_two_gateways_share_the_limits_and_the_usage_of_a_key(store: RedisStore, redis, tmp_path: Path) -> None:
    admission = AdmissionSettings(
        keys_file=keys_file(tmp_path, requests_per_minute=3, budgets={"total": 1}),
        price=PRICE,
        state=redis.url,
        state_timeout_s=5.0,
    )
    answer = completes("x", prompt_tokens=100, completion_tokens=50)
    async with (
        FakeUpstream(behaviour=answer) as upstream,
        running_gateway(upstream, admission=admission) as one,
        running_gateway(upstream, admission=admission) as two,
    ):
        replies = [await ask(gateway) for gateway in (one, two, one, two)]
        await usage_of_key(one)
        usage = await usage_of_key(two)

    assert [reply.status for reply in replies] == [200, 200, 200, 429]
    assert replies[1].header("x-ratelimit-remaining-requests") == "1"
    assert replies[0].header("x-headrace-limits") is None
    assert (usage["total"]["num_requests"], usage["total"]["cost"]) == (3, Decimal("0.0006"))
    assert usage["budgets"][0]["spent"] == Decimal("0.0006")


@needs_redis
@pytest.mark.integration
async def test_an_outage_degrades_to_local_limits_says_so_and_loses_no_money(tmp_path: Path) -> None:
    answer = completes("x", prompt_tokens=100, completion_tokens=50)
    with RedisServer() as redis:
        admission = AdmissionSettings(
            keys_file=keys_file(tmp_path, requests_per_minute=100, budgets={"total": 1}), price=PRICE, state=redis.url
        )
        async with (
            FakeUpstream(behaviour=answer) as upstream,
            running_gateway(upstream, admission=admission) as gateway,
        ):
            before = await ask(gateway)
            redis.stop()
            during = [await ask(gateway) for _ in range(3)]
            state = gateway.statistics().admission
            redis.start()  # empty: it kept nothing
            async with asyncio.timeout(20):
                while (after := await ask(gateway)).header("x-headrace-limits") is not None:
                    during.append(after)
                    await asyncio.sleep(0.1)
            usage = await usage_of_key(gateway)

    assert before.header("x-headrace-limits") is None
    assert [reply.status for reply in during] == [200] * len(during)
    assert all(reply.header("x-headrace-limits") == "local" for reply in during)
    assert state.why_local is not None
    assert usage["total"]["num_requests"] in {len(during) + 1, len(during) + 2}  # the first may have gone with it


@pytest.mark.integration
async def test_a_gateway_starts_without_its_redis(tmp_path: Path) -> None:
    admission = AdmissionSettings(keys_file=keys_file(tmp_path), state=f"unix://{tmp_path}/nobody")
    async with FakeUpstream() as upstream, running_gateway(upstream, admission=admission) as gateway:
        answer = await ask(gateway, ALICE)

    assert (answer.status, answer.header("x-headrace-limits")) == (200, "local")
    assert json.loads(answer.body)["usage"]["prompt_tokens"] == 3


def test_what_is_no_state_is_refused() -> None:
    with pytest.raises(SettingsError) as caught:
        AdmissionSettings(state="memcached://x")
    assert caught.value.param == "state"
    with pytest.raises(SettingsError):
        connect("redis://host:port", timeout_s=1.0)


def test_limits_that_others_share_are_never_decided_without_asking() -> None:
    async def scenario() -> None:
        store = FakeStore()
        state = shared(store)
        assert state.take_now(KEY, HOLD) is None
        assert store.num_asked == store.account.num_open == 0

    run_virtual(scenario())
