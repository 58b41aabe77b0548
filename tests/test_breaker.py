import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.breaker import Breaker, BreakerState


def make_breaker() -> Breaker:
    return Breaker(num_failures_to_open=3, pause_s=1.0, max_pause_s=4.0)


def fail(breaker: Breaker, now: float) -> None:
    breaker.fail(breaker.acquire(now), now)


def opened_breaker(now: float = 0.0) -> Breaker:
    breaker = make_breaker()
    for _ in range(3):
        fail(breaker, now)
    return breaker


def test_three_failures_in_a_row_open_it() -> None:
    breaker = make_breaker()
    states = []
    for _ in range(3):
        fail(breaker, 0.0)
        states.append(breaker.state(0.0))

    assert states == [BreakerState.CLOSED, BreakerState.CLOSED, BreakerState.OPEN]


def test_a_success_between_failures_keeps_it_closed() -> None:
    breaker = make_breaker()
    for _ in range(5):
        fail(breaker, 0.0)
        fail(breaker, 0.0)
        breaker.succeed(breaker.acquire(0.0))

    assert breaker.state(0.0) is BreakerState.CLOSED


@pytest.mark.parametrize(("now", "allowed"), [(0.0, False), (0.999, False), (1.0, True), (100.0, True)])
def test_an_open_one_lets_pass_after_its_pause(now: float, allowed: bool) -> None:
    assert opened_breaker().allows(now) is allowed


def test_half_open_lets_a_single_probe_pass() -> None:
    breaker = opened_breaker()
    breaker.acquire(1.0)

    assert not breaker.allows(1.0)


def test_a_good_probe_closes_it() -> None:
    breaker = opened_breaker()
    breaker.succeed(breaker.acquire(1.0))

    assert breaker.state(1.0) is BreakerState.CLOSED


def test_a_bad_probe_doubles_the_pause_up_to_its_limit() -> None:
    breaker = opened_breaker()
    now, pauses = 0.0, []
    for _ in range(4):
        pause = next(step / 2 for step in range(1, 20) if breaker.allows(now + step / 2))
        pauses.append(pause)
        now += pause
        fail(breaker, now)

    assert pauses == [1.0, 2.0, 4.0, 4.0]


def test_a_probe_without_verdict_frees_the_place() -> None:
    breaker = opened_breaker()
    breaker.release(breaker.acquire(1.0))

    assert breaker.allows(1.0)
    assert breaker.state(1.0) is BreakerState.HALF_OPEN


def test_a_late_failure_does_not_reopen_what_a_probe_has_closed() -> None:
    breaker = make_breaker()
    late = [breaker.acquire(0.0) for _ in range(3)]
    for _ in range(3):
        fail(breaker, 0.0)
    breaker.succeed(breaker.acquire(1.0))
    for permit in late:
        breaker.fail(permit, 1.1)

    assert breaker.state(1.1) is BreakerState.CLOSED


def test_a_late_success_does_not_close_an_open_one() -> None:
    breaker = make_breaker()
    late = breaker.acquire(0.0)
    for _ in range(3):
        fail(breaker, 0.0)
    breaker.succeed(late)

    assert breaker.state(0.5) is BreakerState.OPEN


def test_a_permit_reports_once() -> None:
    breaker = make_breaker()
    permit = breaker.acquire(0.0)
    for _ in range(5):
        breaker.fail(permit, 0.0)

    assert breaker.state(0.0) is BreakerState.CLOSED


@given(st.lists(st.sampled_from(["acquire", "succeed", "fail", "release", "wait"]), max_size=60))
def test_whatever_happens_half_open_has_one_probe_and_no_place_leaks(steps: list[str]) -> None:
    breaker, now, permits = make_breaker(), 0.0, []
    for step in steps:
        if step == "wait":
            now += 1.0
        elif step == "acquire" and breaker.allows(now):
            permits.append(breaker.acquire(now))
        elif step == "fail" and permits:
            breaker.fail(permits.pop(0), now)
        elif step == "succeed" and permits:
            breaker.succeed(permits.pop(0))
        elif step == "release" and permits:
            breaker.release(permits.pop(0))
        open_probes = [permit for permit in permits if permit.is_probe and permit.generation == breaker._generation]
        assert len(open_probes) <= 1
    for permit in permits:
        breaker.release(permit)

    assert breaker.allows(now + 4.0)
