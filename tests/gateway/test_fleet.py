"""The life of an endpoint in virtual time, and what its own metrics say of it."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.breaker import Breaker
from headrace.gateway.deadlines import Deadlines
from headrace.gateway.discovery.source import EndpointSpec
from headrace.gateway.endpoints.endpoint import Endpoint, ModelCard, ServedModel
from headrace.gateway.endpoints.fleet import Fleet
from headrace.gateway.endpoints.lifecycle import Lifecycle
from headrace.gateway.endpoints.reported_load import Elsewhere, ReportedLoad, StartMarks, read_load
from headrace.gateway.prefix_index import ChainHashers, PrefixIndex
from headrace.gateway.upstream.address import parse_address
from headrace.gateway.upstream.connection import UpstreamTimeouts
from headrace.gateway.upstream.pool import UpstreamPool
from headrace.testing.virtual_time import run_virtual

TIMEOUTS = UpstreamTimeouts(connect_s=1, first_byte_s=1, idle_s=1)
DRAIN_S = 100.0


def spec(host: str, *, weight: float = 1.0) -> EndpointSpec:
    return EndpointSpec(parse_address(f"http://{host}"), weight=weight, origin="test")


class Diary:
    """A companion that writes down what happens."""

    def __init__(self) -> None:
        self.entries: list[str] = []

    def follow(self, endpoint: Endpoint) -> None:
        self.entries.append(f"follow {endpoint.name}")

    async def forget(self, endpoint: Endpoint) -> None:
        await asyncio.sleep(0)
        self.entries.append(f"forget {endpoint.name}")


class World:
    """A fleet and its lifecycle."""

    def __init__(self) -> None:
        self.fleet = Fleet()
        self.diary = Diary()
        self.index = PrefixIndex(max_bytes=1 << 20)
        self.deadlines = Deadlines(interval_s=1.0)
        self.lifecycle = Lifecycle(self.fleet, make=self._make, companions=[self.diary], drain_timeout_s=DRAIN_S)

    def _make(self, spec: EndpointSpec) -> Endpoint:
        pool = UpstreamPool(spec.address, timeouts=TIMEOUTS, max_idle=1, idle_timeout_s=1, deadlines=self.deadlines)
        breaker = Breaker(num_failures_to_open=3, pause_s=1, max_pause_s=1)
        return Endpoint(pool=pool, breaker=breaker, holder=self.index.add_holder(spec.url), spec=spec)

    def apply(self, *hosts: str) -> None:
        self.lifecycle.apply([spec(host) for host in hosts])

    def find(self, host: str) -> Endpoint:
        endpoint = self.fleet.find(f"http://{host}")
        assert endpoint is not None
        return endpoint

    @property
    def names(self) -> list[str]:
        return [one.name.removeprefix("http://") for one in self.fleet.endpoints]

    def serve(self, host: str, model: str = "m") -> None:
        """As a good probe would."""
        self.find(host).note_well({model: ServedModel(card=ModelCard(id=model), raw=msgspec.Raw(b"{}"))})
        self.fleet.refresh_models()

    def takers(self) -> list[str]:
        return [one.name.removeprefix("http://") for one in self.fleet.candidates("m", now=0.0)]


def live(scenario: Callable[[World], Awaitable[None]]) -> None:
    async def run() -> None:
        world = World()
        try:
            await scenario(world)
        finally:
            await world.lifecycle.aclose()
            world.deadlines.close()

    run_virtual(run())


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def forgotten(world: World, host: str) -> None:
    while f"forget http://{host}" not in world.diary.entries:
        await asyncio.sleep(0.5)


def test_an_endpoint_joins_and_takes_requests_once_it_is_well() -> None:
    async def scenario(world: World) -> None:
        world.apply("a", "b")
        assert world.names == ["a", "b"]
        assert world.takers() == []
        world.serve("b")
        assert world.takers() == ["b"]
        assert world.diary.entries == ["follow http://a", "follow http://b"]

    live(scenario)


def test_one_that_vanishes_gets_no_new_request_at_once_and_goes_when_its_last_has_ended() -> None:
    async def scenario(world: World) -> None:
        world.apply("a", "b")
        world.serve("a")
        world.serve("b")
        endpoint = world.find("a")
        with endpoint.attempt(now=0.0):
            world.apply("b")
            assert world.takers() == ["b"]
            assert "names it no more" in endpoint.why_not(now=0.0)
            await asyncio.sleep(DRAIN_S / 2)
            assert world.names == ["a", "b"]
            assert world.lifecycle.statistics().num_leaving == 1
        await forgotten(world, "a")
        assert world.names == ["b"]
        assert now_s() < DRAIN_S
        assert world.lifecycle.statistics().num_cut == 0

    live(scenario)


def test_what_has_not_ended_at_the_deadline_is_cut() -> None:
    async def scenario(world: World) -> None:
        world.apply("a")
        endpoint = world.find("a")
        with endpoint.attempt(now=0.0):
            world.apply()
            await asyncio.sleep(DRAIN_S + 1)
            assert world.names == []
        await forgotten(world, "a")
        assert world.lifecycle.statistics().num_cut == 1

    live(scenario)


def test_the_models_of_a_vanished_endpoint_stay_known_until_it_is_forgotten() -> None:
    async def scenario(world: World) -> None:
        world.apply("a")
        world.serve("a")
        with world.find("a").attempt(now=0.0):
            world.apply()
            assert "m" in world.fleet.models
            assert "draining" in world.fleet.unavailable("m", now=0.0).message
        await forgotten(world, "a")
        assert world.fleet.models == {}

    live(scenario)


def test_one_that_is_back_before_its_drain_is_over_goes_on_as_it_was() -> None:
    async def scenario(world: World) -> None:
        world.apply("a")
        world.serve("a")
        endpoint = world.find("a")
        with endpoint.attempt(now=0.0):
            world.apply()
            world.apply("a")
            assert world.takers() == ["a"]
        await asyncio.sleep(2 * DRAIN_S)
        assert world.find("a") is endpoint
        assert world.diary.entries == ["follow http://a"]

    live(scenario)


def test_one_that_comes_back_after_it_was_forgotten_is_somebody_new() -> None:
    async def scenario(world: World) -> None:
        world.apply("a")
        first = world.find("a")
        world.apply()
        await forgotten(world, "a")
        world.apply("a")
        assert world.find("a") is not first
        assert not world.find("a").is_healthy
        assert world.find("a").holders[0].slot != first.holders[0].slot

    live(scenario)


def test_a_drain_by_the_operator_lasts_until_the_operator_ends_it() -> None:
    async def scenario(world: World) -> None:
        world.lifecycle.set_drained(frozenset({"http://a"}))
        world.apply("a", "b")
        world.serve("a")
        world.serve("b")
        assert world.takers() == ["b"]
        await asyncio.sleep(2 * DRAIN_S)
        assert world.names == ["a", "b"]
        world.apply("b")
        world.apply("a", "b")
        assert world.takers() == ["b"]
        world.lifecycle.set_drained(frozenset())
        assert world.takers() == ["a", "b"]

    live(scenario)


def test_what_a_source_says_anew_of_an_endpoint_holds_at_once() -> None:
    async def scenario(world: World) -> None:
        world.apply("a")
        endpoint = world.find("a")
        world.lifecycle.apply([spec("a", weight=7.0)])
        assert world.find("a") is endpoint
        assert endpoint.weight == 7.0

    live(scenario)


def test_an_attempt_gives_its_place_back_once_however_late_it_is_told_of() -> None:
    async def scenario(world: World) -> None:
        world.apply("a")
        load = world.find("a").load
        with world.find("a").attempt(now=0.0, num_new_tokens=7) as attempt:
            assert (load.num_in_flight, load.num_waiting_tokens) == (1, 7)
            attempt.succeed()
        attempt.note_answering()
        attempt.__exit__(None, None, None)
        done = load.statistics()
        assert (done.num_in_flight, done.num_waiting_tokens, done.num_done, done.num_cancelled) == (0, 0, 1, 0)

    live(scenario)


def test_closing_in_the_middle_of_a_drain_leaves_no_task() -> None:
    async def scenario(world: World) -> None:
        world.apply("a")
        attempt = world.find("a").attempt(now=0.0)
        world.apply()
        await asyncio.sleep(1)
        await world.lifecycle.aclose()
        attempt.__exit__(None, None, None)
        assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []

    live(scenario)


@given(st.lists(st.sets(st.sampled_from("abc")), min_size=1, max_size=8))
def test_any_sequence_of_sets_ends_in_the_last_one(sets: list[set[str]]) -> None:
    async def scenario(world: World) -> None:
        for hosts in sets:
            world.apply(*sorted(hosts))
            await asyncio.sleep(0)
        await asyncio.sleep(1)
        assert sorted(world.names) == sorted(sets[-1])
        followed, forgot = (
            sum(entry.startswith(what) for entry in world.diary.entries) for what in ("follow", "forget")
        )
        assert followed - forgot == len(sets[-1])
        statistics = world.lifecycle.statistics()
        assert (statistics.num_leaving, statistics.num_added - statistics.num_removed) == (0, len(sets[-1]))

    live(scenario)


def test_a_removed_cache_takes_nothing_in_from_an_answer_that_was_under_way() -> None:
    async def scenario(world: World) -> None:
        world.apply("a")
        (holder,) = world.find("a").holders
        chain = ChainHashers().of(16).chain(np.arange(64, dtype=np.uint32))
        world.index.store(holder, chain, now=1.0)
        assert world.index.held(world.index.follow(chain), holder, now=1.0).num_stored == 4
        world.index.remove_holder(holder)
        world.index.store(holder, chain, now=1.0)
        assert world.index.held(world.index.follow(chain), holder, now=1.0).num_stored == 0

    live(scenario)


# what an engine's metrics say

VLLM = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 4.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 4.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.5
vllm:prompt_tokens_total{engine="0",model_name="m"} 1.5e+03
process_start_time_seconds 1.7e+09
"""


def test_the_load_of_all_ranks_is_read() -> None:
    load = read_load(VLLM)

    assert load == ReportedLoad(
        num_running=5, num_waiting=4, kv_cache_usage=0.5, num_prompt_tokens=1500.0, started_s=1.7e9
    )


def test_sglangs_names_are_read_too() -> None:
    load = read_load(b'sglang:num_running_reqs{m="x"} 2.0\nsglang:num_queue_reqs 1.0\nsglang:token_usage 0.1\n')

    assert load == ReportedLoad(num_running=2, num_waiting=1, kv_cache_usage=0.1)


@pytest.mark.parametrize("body", [b"", b"<html>", b"up 1\n", VLLM * 4000, b"vllm:num_requests_running 1e999\n"])
def test_what_tells_no_load_is_no_load(body: bytes) -> None:
    assert read_load(body) is None


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reading(body: bytes) -> None:
    load = read_load(b"vllm:num_requests_running 1\nvllm:num_requests_waiting " + body)

    assert load is None or load.num_requests >= 0


def report(num_requests: int) -> ReportedLoad:
    return ReportedLoad(num_running=num_requests, num_waiting=0)


def test_only_requests_that_are_not_ours_count_and_only_when_two_reports_agree() -> None:
    elsewhere = Elsewhere()
    seen = []
    for reported, own in ((10, 4), (9, 4), (4, 4), (3, 4), (20, 0), (20, 0)):
        elsewhere.note(report(reported), num_own=own)
        seen.append(elsewhere.num_requests)
    elsewhere.forget()

    assert seen == [0, 5, 0, 0, 0, 20]
    assert elsewhere.num_requests == 0


def test_a_process_that_started_later_or_counts_from_anew_is_another_one() -> None:
    def marks(*reports: tuple[float | None, float | None]) -> list[bool]:
        noticed = StartMarks()
        return [
            noticed.note_load(ReportedLoad(num_running=0, num_waiting=0, started_s=started, num_prompt_tokens=tokens))
            for started, tokens in reports
        ]

    assert marks((1e9, 5), (1e9 + 1, 9), (1e9 + 60, 9)) == [False, False, True]
    assert marks((None, 5), (None, 9), (None, 0), (None, 0)) == [False, False, True, False]
    assert marks((None, None), (1e9, 4), (None, None)) == [False, False, False]


def test_models_that_were_created_anew_tell_of_a_restart_where_that_time_holds_still() -> None:
    steady, moving = StartMarks(), StartMarks()

    assert not steady.note_created({"m": 100}, now=0.0)
    assert not steady.note_created({"m": 100}, now=10.0)
    assert not steady.note_created({"m": 100, "new": 110}, now=11.0)
    assert steady.note_created({"m": 200, "new": 200}, now=20.0)
    assert not any(moving.note_created({"m": second}, now=float(second)) for second in range(0, 20, 2))
