from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.gateway.routing import (
    POLICIES,
    LeastLoaded,
    PolicyName,
    PowerOfTwo,
    Prefix,
    PrefixHash,
    RequestFacts,
    RoundRobin,
    Session,
)
from headrace.gateway.routing.rendezvous import first, first_with_room, ranked

NOTHING = RequestFacts()


@dataclass(frozen=True)
class Engine:
    """A candidate."""

    name: str
    num_in_flight: int
    num_waiting_tokens: int = 0
    weight: float = 1.0


def no_chance(_: int) -> int:
    raise AssertionError("this policy draws nothing")


def drawing(*numbers: int) -> Callable[[int], int]:
    values = iter(numbers)
    return lambda _: next(values)


def candidates(*loads: int, waiting: tuple[int, ...] = ()) -> list[Engine]:
    return [Engine(f"endpoint-{index}", load, waiting[index] if waiting else 0) for index, load in enumerate(loads)]


# -- least loaded, round robin, power of two


def test_the_fewest_in_flight_is_chosen() -> None:
    choice = LeastLoaded(draw=no_chance).choose(candidates(3, 1, 2), NOTHING)

    assert (choice.index, choice.reason) == (1, "1 in flight, fewest of 3")


def test_ties_take_turns() -> None:
    policy = LeastLoaded(draw=no_chance)

    assert [policy.choose(candidates(0, 0, 0), NOTHING).index for _ in range(6)] == [0, 1, 2, 0, 1, 2]


def test_the_turn_goes_on_when_an_endpoint_is_missing() -> None:
    policy = LeastLoaded(draw=no_chance)
    policy.choose(candidates(0, 0, 0), NOTHING)
    policy.choose(candidates(0, 0, 0), NOTHING)

    assert policy.choose(candidates(0, 0), NOTHING).index == 0


@given(st.integers(1, 6), st.integers(0, 60))
def test_reserved_at_the_choice_a_burst_spreads_evenly(num_endpoints: int, num_requests: int) -> None:
    policy, loads = LeastLoaded(draw=no_chance), [0] * num_endpoints
    for _ in range(num_requests):
        loads[policy.choose(candidates(*loads), NOTHING).index] += 1

    assert max(loads) - min(loads) <= 1


def test_an_endpoint_of_twice_the_weight_takes_twice_the_load() -> None:
    policy, loads = LeastLoaded(draw=no_chance), [0, 0]
    for _ in range(30):
        fleet = [Engine("a", loads[0], weight=2.0), Engine("b", loads[1])]
        loads[policy.choose(fleet, NOTHING).index] += 1

    assert loads == [20, 10]


def test_round_robin_takes_one_after_the_other_whatever_the_load() -> None:
    policy = RoundRobin(draw=no_chance)

    assert [policy.choose(candidates(9, 0, 5), NOTHING).index for _ in range(4)] == [0, 1, 2, 0]


@pytest.mark.parametrize(
    ("draws", "chosen"), [((0, 0), 1), ((1, 0), 1), ((0, 1), 0), ((2, 0), 0), ((1, 1), 1), ((2, 1), 1)]
)
def test_the_less_loaded_of_two_different_ones_is_chosen(draws: tuple[int, int], chosen: int) -> None:
    assert PowerOfTwo(draw=drawing(*draws)).choose(candidates(2, 1, 3), NOTHING).index == chosen


# -- hashing


@given(st.integers(0, 2**64 - 1), st.permutations(range(5)))
def test_the_order_of_a_key_does_not_depend_on_the_order_of_the_endpoints(key: int, order: list[int]) -> None:
    fleet = candidates(0, 0, 0, 0, 0)
    shuffled = [fleet[index] for index in order]

    assert [fleet[at].name for at in ranked(key, fleet)] == [shuffled[at].name for at in ranked(key, shuffled)]


@given(st.integers(0, 2**64 - 1), st.integers(0, 4))
def test_an_endpoint_that_leaves_moves_no_other_keys(key: int, gone: int) -> None:
    fleet = candidates(0, 0, 0, 0, 0)
    before = [fleet[at].name for at in ranked(key, fleet) if at != gone]
    left = fleet[:gone] + fleet[gone + 1 :]

    assert [left[at].name for at in ranked(key, left)] == before


@given(
    st.integers(0, 2**64 - 1),
    st.lists(st.text(st.characters(codec="utf-8"), max_size=40), min_size=1, max_size=9),
    st.floats(0.1, 10),
)
def test_equally_strong_endpoints_are_chosen_alike_with_and_without_a_compiler(
    key: int, names: list[str], weight: float
) -> None:
    fleet = [Engine(name, 0, weight=weight) for name in names]

    assert first(key, fleet) == first(key, fleet, native=None) == ranked(key, fleet)[0]


def test_keys_are_shared_by_weight() -> None:
    fleet = [Engine("a", 0, weight=3.0), Engine("b", 0, weight=1.0)]
    counts = Counter(ranked(key, fleet)[0] for key in range(4000))

    assert counts[0] / 4000 == pytest.approx(0.75, abs=0.03)


@given(
    st.integers(0, 2**64 - 1),
    st.lists(st.tuples(st.integers(0, 50), st.floats(0.1, 10)), min_size=1, max_size=6),
)
def test_there_is_always_one_with_room(key: int, fleet: list[tuple[int, float]]) -> None:
    loaded = [Engine(f"e{at}", load, weight=weight) for at, (load, weight) in enumerate(fleet)]
    index, rank = first_with_room(key, loaded)

    assert ranked(key, loaded)[rank] == index


def test_a_session_stays_whatever_the_load() -> None:
    facts = RequestFacts(session_key=77)
    first = Session(draw=no_chance).choose(candidates(0, 0, 0), facts).index
    loads = [0, 0, 0]
    loads[first] = 50

    assert Session(draw=no_chance).choose(candidates(*loads), facts).index == first


def test_without_a_session_the_least_loaded_serves() -> None:
    choice = Session(draw=no_chance).choose(candidates(2, 1), NOTHING)

    assert (choice.index, choice.reason) == (1, "no session; 1 in flight, fewest of 2")


def test_prefix_hash_passes_over_an_endpoint_with_more_than_its_share() -> None:
    facts = RequestFacts(head_key=5)
    first = PrefixHash(draw=no_chance).choose(candidates(0, 0, 0), facts).index
    loads = [0, 0, 0]
    loads[first] = 4
    choice = PrefixHash(draw=no_chance).choose(candidates(*loads), facts)

    assert choice.index != first
    assert "before it had their share" in choice.reason


# -- prefix

PROMPT = RequestFacts(num_tokens=1000, novel_key=3)


def cached(*num_tokens: int) -> RequestFacts:
    """A prompt of 1000 tokens, of which each candidate has so many."""
    return msgspec.structs.replace(PROMPT, num_cached_tokens=num_tokens)


def test_the_holder_of_the_prefix_is_chosen() -> None:
    choice = Prefix(draw=no_chance).choose(candidates(1, 1, 1), cached(0, 960, 512))

    assert (choice.index, choice.reason) == (1, "holds 960 tokens, 1 in flight")


def test_a_holder_with_a_long_queue_is_passed_over_for_this_request() -> None:
    choice = Prefix(draw=no_chance).choose(candidates(6, 0, waiting=(60_000, 0)), cached(512, 0))

    assert choice.index == 1
    assert choice.reason == "spill: holds 0 tokens, 0 in flight; endpoint-0 holds 512 with 6 in flight"


def test_a_busy_batch_alone_does_not_outweigh_a_prompt_that_is_all_there() -> None:
    assert Prefix(draw=no_chance).choose(candidates(40, 0), cached(992, 0)).index == 0


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=20), st.integers(0, 512))
def test_idle_gateways_agree_on_what_is_cold(keys: list[int], num_cached: int) -> None:
    fleet = candidates(0, 0, 0, 0)
    gateways = [Prefix(draw=no_chance), Prefix(draw=no_chance)]

    for key in keys:
        facts = RequestFacts(num_tokens=1000, num_cached_tokens=(num_cached,) * 4, novel_key=key)
        assert len({gateway.choose(fleet, facts).index for gateway in gateways}) == 1


def test_what_is_cold_goes_to_the_least_busy() -> None:
    choices = {
        Prefix(draw=no_chance)
        .choose(candidates(1, 1, 1, waiting=(500, 0, 900)), RequestFacts(num_tokens=100, novel_key=key))
        .index
        for key in range(20)
    }

    assert choices == {1}


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 900), st.integers(0, 9000)), min_size=2, max_size=6))
def test_nobody_who_has_more_and_less_to_do_is_passed_over(fleet: list[tuple[int, int, int]]) -> None:
    loads, held, waiting = zip(*fleet, strict=True)
    index = Prefix(draw=no_chance).choose(candidates(*loads, waiting=waiting), cached(*held)).index

    for other in range(len(fleet)):
        is_better = held[other] > held[index] and loads[other] <= loads[index] and waiting[other] <= waiting[index]
        assert not is_better


@pytest.mark.parametrize("name", POLICIES)
@given(
    loads=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    key=st.none() | st.integers(0, 2**64 - 1),
    drawn=st.integers(0, 5),
)
def test_every_policy_chooses_a_candidate(name: PolicyName, loads: list[int], key: int | None, drawn: int) -> None:
    policy = POLICIES[name](draw=lambda num: drawn % num)
    facts = RequestFacts(num_tokens=10, head_key=key, novel_key=key, session_key=key)
    choice = policy.choose(candidates(*loads), facts)

    assert policy.name == name
    assert 0 <= choice.index < len(loads)
    assert choice.reason
