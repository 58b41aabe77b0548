"""The members of a pool, in virtual time: breakers, probes, limits. An hour of health checks takes milliseconds."""

import asyncio

import pytest
from tests.tokenization.remote.bench import ONE, TWO, Bench, Local, reason, virtually

from headrace.errors import OverloadedError
from headrace.units import parse_duration

# the circuit breaker of an endpoint


def test_an_endpoint_that_keeps_failing_is_left_alone_for_a_pause() -> None:
    async def test(bench: Bench) -> None:
        bench.hosts[ONE].is_down = True
        reasons = [await reason(bench.pool.encode("h", model="demo")) for _ in range(4)]
        assert reasons == ["unreachable", "unreachable", "unhealthy", "unhealthy"]
        bench.hosts[ONE].is_down = False
        await asyncio.sleep(4.9)
        assert await reason(bench.pool.encode("h", model="demo")) == "unhealthy"
        await asyncio.sleep(0.2)
        assert await reason(bench.pool.encode("h", model="demo")) is None

    virtually(test, Bench(local=Local(), breaker_failures=2, breaker_pause_s=5.0, remote={"max_retries": 0}))


def test_a_breaker_that_opens_ends_the_request_with_what_opened_it() -> None:
    async def test(bench: Bench) -> None:
        bench.hosts[ONE].is_down = True
        assert await reason(bench.pool.encode("h", model="demo")) == "unreachable"
        assert bench.hosts[ONE].asked_s == pytest.approx([0, 0.05])
        assert asyncio.get_running_loop().time() == pytest.approx(0.05)

    virtually(test, Bench(local=Local(), breaker_failures=2))


def test_a_breaker_that_opens_during_the_pause_ends_the_request_with_its_own_failure() -> None:
    async def test(bench: Bench) -> None:
        bench.hosts[ONE].is_down = True
        reasons = await asyncio.gather(*[reason(bench.pool.encode("h", model="demo")) for _ in range(2)])
        assert reasons == ["unreachable", "unreachable"]
        assert bench.hosts[ONE].asked_s == [0, 0]

    virtually(test, Bench(local=Local(), breaker_failures=2))


def test_half_open_asks_the_endpoint_once() -> None:
    async def test(bench: Bench) -> None:
        bench.hosts[ONE].is_down = True
        await bench.pool.encode("h", model="demo")
        bench.hosts[ONE].is_down, bench.hosts[ONE].delay_s = False, 1
        await asyncio.sleep(1.5)
        reasons = await asyncio.gather(*[reason(bench.pool.encode("h", model="demo")) for _ in range(3)])
        assert sorted(reasons, key=str) == [None, "unhealthy", "unhealthy"]

    virtually(test, Bench(local=Local(), breaker_failures=1, remote={"max_retries": 0}))


def test_a_cancelled_trial_frees_its_place() -> None:
    async def test(bench: Bench) -> None:
        bench.hosts[ONE].is_down = True
        await bench.pool.encode("h", model="demo")
        bench.hosts[ONE].is_down, bench.hosts[ONE].delay_s = False, 1
        await asyncio.sleep(1.5)
        trial = asyncio.get_running_loop().create_task(bench.pool.encode("h", model="demo"))
        await asyncio.sleep(0.5)
        trial.cancel()
        await asyncio.wait({trial})
        (member,) = bench.pool.statistics().members
        assert (member.num_in_flight, member.breaker) == (0, "half_open")
        assert await reason(bench.pool.encode("h", model="demo")) is None

    virtually(test, Bench(local=Local(), breaker_failures=1, remote={"max_retries": 0}))


# health checks


@pytest.mark.parametrize(("period", "expected"), [("30s", [0, 30, 60, 90]), ("45s", [0, 45, 90]), ("1m", [0, 60])])
def test_health_is_checked_every_period_that_was_set(period: str, expected: list[float]) -> None:
    """In AIBrix an explicit period overflows, and no health check is ever made."""

    async def test(bench: Bench) -> None:
        await bench.pool.encode("h", model="demo")
        await asyncio.sleep(100)
        assert bench.hosts[ONE].asked_s == pytest.approx(expected)

    virtually(test, Bench(health_period_s=parse_duration(period)))


def test_an_endpoint_found_unhealthy_is_not_asked_until_it_is_well_again() -> None:
    async def test(bench: Bench) -> None:
        await bench.pool.encode("h", model="demo")
        bench.hosts[ONE].is_down = True
        await asyncio.sleep(31)
        (member,) = bench.pool.statistics().members
        assert (member.is_healthy, member.why_unhealthy) == (False, "connection refused")
        assert await reason(bench.pool.encode("h", model="demo")) == "unhealthy"
        await asyncio.sleep(60)
        assert bench.metric("pool_unhealthy_tokenizers_total") == 1
        bench.hosts[ONE].is_down = False
        await asyncio.sleep(30)
        assert await reason(bench.pool.encode("h", model="demo")) is None

    virtually(test, Bench(local=Local()))


def test_a_hanging_health_check_holds_up_neither_requests_nor_other_checks() -> None:
    """AIBrix checks one after the other under the lock that every request needs."""

    async def test(bench: Bench) -> None:
        await asyncio.gather(bench.pool.encode("h", model="demo"), bench.pool.encode("h", model="other"))
        bench.hosts[ONE].delay_s = 1e6
        await asyncio.sleep(31)
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        await bench.pool.encode("h", model="other")
        assert loop.time() == begun_s
        assert bench.hosts[TWO].asked_s == pytest.approx([0, 30, 31])
        await asyncio.sleep(3)
        assert [member.is_healthy for member in bench.pool.statistics().members] == [True, True]
        await asyncio.sleep(2)
        assert [member.is_healthy for member in bench.pool.statistics().members] == [False, True]

    virtually(test, Bench({"demo": ["one"], "other": ["two"]}))


def test_the_time_for_a_health_check_is_the_one_that_was_set() -> None:
    async def test(bench: Bench) -> None:
        await bench.pool.encode("h", model="demo")
        bench.hosts[ONE].delay_s = 3
        await asyncio.sleep(32.9)
        assert bench.pool.statistics().members[0].is_healthy
        await asyncio.sleep(1)
        assert bench.pool.statistics().members[0].is_healthy

    virtually(test, Bench(health_timeout_s=3.5))


# how many are kept, and for how long


@pytest.mark.parametrize("ttl", ["5m", "20s"])
def test_an_idle_tokenizer_is_dropped_after_the_time_that_was_set(ttl: str) -> None:
    """In AIBrix an explicit 5 m means 154 years. Health checks are no use: they do not keep it."""
    ttl_s = parse_duration(ttl)

    async def test(bench: Bench) -> None:
        await bench.pool.encode("h", model="demo")
        await asyncio.sleep(ttl_s - 1)
        assert bench.num_members == 1
        await bench.pool.encode("h", model="demo")
        await asyncio.sleep(ttl_s - 1)
        assert (bench.num_members, bench.metric("pool_active_tokenizers")) == (1, 1)
        await asyncio.sleep(2)
        assert (bench.num_members, bench.metric("pool_active_tokenizers")) == (0, 0)
        num_asked = len(bench.hosts[ONE].asked_s)
        await asyncio.sleep(1000)
        assert len(bench.hosts[ONE].asked_s) == num_asked
        await bench.pool.encode("h", model="demo")
        assert bench.metric("pool_creation_successes_total") == 2

    virtually(test, Bench(idle_ttl_s=ttl_s))


def test_a_tokenizer_in_use_is_not_dropped() -> None:
    async def test(bench: Bench) -> None:
        bench.hosts[ONE].delay_s = 100
        await bench.pool.encode("h", model="demo")
        assert bench.num_members == 1
        await asyncio.sleep(9)
        assert bench.num_members == 1
        await asyncio.sleep(2)
        assert bench.num_members == 0

    virtually(test, Bench(idle_ttl_s=10, remote={"request_timeout_s": 1000.0}))


def test_the_one_idle_longest_makes_room() -> None:
    async def test(bench: Bench) -> None:
        for model in ("a", "b", "a", "c"):
            await bench.pool.encode("h", model=model)
            await asyncio.sleep(1)
        assert {member.tokenizer.model for member in bench.pool.statistics().members} == {"a", "c"}
        await asyncio.sleep(60)
        assert bench.num_members == 2
        assert len(bench.hosts[TWO].asked_s) == 1, "what was dropped is still probed"

    virtually(test, Bench({"a": ["one"], "b": ["two"], "c": ["three"]}, max_tokenizers=2))


def test_a_pool_with_all_in_use_is_full_for_new_ones_and_not_for_those_it_has() -> None:
    """AIBrix looks at the maximum before it notices that it has the model."""

    async def test(bench: Bench) -> None:
        bench.hosts[ONE].delay_s = 5
        async with asyncio.TaskGroup() as group:
            group.create_task(bench.pool.encode("h", model="demo"))
            await asyncio.sleep(1)
            with pytest.raises(OverloadedError, match="pool_full"):
                await bench.pool.encode("h", model="other")
            assert bench.metric("pool_creation_failures_total") == 1
            assert (await bench.pool.encode("h", model="demo")).endpoint == ONE
        assert (await bench.pool.encode("h", model="other")).endpoint == TWO

    virtually(test, Bench({"demo": ["one"], "other": ["two"]}, max_tokenizers=1))


def test_a_full_pool_asks_another_endpoint_that_it_has() -> None:
    async def test(bench: Bench) -> None:
        bench.hosts[ONE].delay_s = 5
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(bench.pool.encode("h", model="demo"))
        assert len(bench.hosts[ONE].asked_s) == 3

    virtually(test, Bench({"demo": ["one", "two"]}, max_tokenizers=1))
