from dataclasses import dataclass
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.gateway.retry import WINDOW_S, Retries, is_fault_status


def retries(*, share: float = 0.0, floor: int = 0) -> Retries:
    return Retries(share=share, floor=floor, first_delay_s=0.05)


def num_taken(budget: Retries, *, now: float) -> int:
    count = 0
    while budget.take(now):
        count += 1
    return count


def test_the_floor_is_there_without_any_request_and_comes_back() -> None:
    budget = retries(floor=4)

    assert num_taken(budget, now=0.0) == 4
    assert num_taken(budget, now=0.0) == 0
    assert num_taken(budget, now=100 * WINDOW_S) == 4


def test_each_request_earns_its_share() -> None:
    budget = retries(share=0.25)
    for _ in range(100):
        budget.note_request(0.0)

    assert num_taken(budget, now=0.0) == 25


def test_what_was_earned_long_ago_is_gone() -> None:
    budget = retries(share=0.25)
    for _ in range(100):
        budget.note_request(0.0)

    assert num_taken(budget, now=100 * WINDOW_S) == 0


def test_what_was_refused_is_counted() -> None:
    budget = retries(floor=1)
    num_taken(budget, now=0.0)

    assert (budget.statistics().num_allowed, budget.statistics().num_refused) == (1, 1)


@dataclass(frozen=True)
class Event:
    after_s: float
    kind: Literal["request", "retry"]


EVENTS = st.lists(st.builds(Event, st.floats(0, 30), st.sampled_from(["request", "retry"])), max_size=200)


@given(EVENTS, st.floats(0, 1), st.integers(0, 10))
def test_for_any_history_retries_stay_within_the_share_and_the_floor(
    events: list[Event], share: float, floor: int
) -> None:
    budget = retries(share=share, floor=floor)
    now, num_requests, num_retries = 0.0, 0, 0
    for event in events:
        now += event.after_s
        if event.kind == "request":
            budget.note_request(now)
            num_requests += 1
        else:
            num_retries += budget.take(now)

    assert num_retries <= share * num_requests + floor * (1 + now / WINDOW_S) + 1e-6


@given(st.integers(1, 5), st.floats(0, 1, exclude_max=True))
def test_the_wait_is_a_part_of_a_time_that_doubles(num_failures: int, draw: float) -> None:
    delay_s = retries().delay_s(num_failures, draw=draw)

    assert delay_s == pytest.approx(draw * 0.05 * 2 ** (num_failures - 1))


@pytest.mark.parametrize(
    ("status", "is_fault"),
    [(200, False), (400, False), (429, False), (500, True), (501, False), (502, True), (503, True), (529, True)],
)
def test_which_statuses_speak_against_an_endpoint(status: int, is_fault: bool) -> None:
    assert is_fault_status(status) is is_fault
