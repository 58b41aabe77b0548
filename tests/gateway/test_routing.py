from hypothesis import given
from hypothesis import strategies as st

from headrace.gateway.routing import Candidate, LeastLoaded


def candidates(*loads: int) -> list[Candidate]:
    return [Candidate(f"endpoint-{index}", load) for index, load in enumerate(loads)]


def test_the_fewest_in_flight_is_chosen() -> None:
    assert LeastLoaded().choose(candidates(3, 1, 2)).index == 1


def test_ties_take_turns() -> None:
    policy = LeastLoaded()

    assert [policy.choose(candidates(0, 0, 0)).index for _ in range(6)] == [0, 1, 2, 0, 1, 2]


def test_the_turn_goes_on_when_an_endpoint_is_missing() -> None:
    policy = LeastLoaded()
    policy.choose(candidates(0, 0, 0))
    policy.choose(candidates(0, 0, 0))

    assert policy.choose(candidates(0, 0)).index == 0


def test_the_reason_names_the_load() -> None:
    assert LeastLoaded().choose(candidates(4, 2)).reason == "2 in flight, fewest of 2"


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8))
def test_nobody_chosen_has_more_than_another(loads: list[int]) -> None:
    assert loads[LeastLoaded().choose(candidates(*loads)).index] == min(loads)


@given(st.integers(1, 6), st.integers(0, 60))
def test_reserved_at_the_choice_a_burst_spreads_evenly(num_endpoints: int, num_requests: int) -> None:
    policy, loads = LeastLoaded(), [0] * num_endpoints
    for _ in range(num_requests):
        loads[policy.choose(candidates(*loads)).index] += 1

    assert max(loads) - min(loads) <= 1
