"""A core that is silent is hung; one that finishes no step while work waits is stalled; an idle one is neither."""

from headrace.engine.client.core_watch import CoreWatch
from headrace.engine.wire.messages import CoreStatistics

BUSY = CoreStatistics(num_running=1, num_steps=1)


def make_watch() -> CoreWatch:
    return CoreWatch(hang_timeout_s=100.0, step_timeout_s=10.0)


def test_silence_shows_first_as_a_stall_and_then_as_a_hang() -> None:
    watch = make_watch()
    states = []
    for _ in range(3):
        states.append((watch.is_stalled(), watch.is_hung()))
        watch.tick(50.0)
    assert states == [(False, False), (True, False), (True, True)]


def test_a_finished_step_ends_a_stall() -> None:
    watch = make_watch()
    watch.tick(50.0)
    watch.hear(BUSY)
    assert not watch.is_stalled()


def test_signs_of_life_without_a_step_are_a_stall_and_no_hang() -> None:
    watch = make_watch()
    watch.hear(BUSY)
    for _ in range(200):
        watch.tick(1.0)
        watch.hear(BUSY)
    assert watch.is_stalled()
    assert not watch.is_hung()


def test_an_idle_or_sleeping_core_is_not_stalled() -> None:
    watch = make_watch()
    for statistics in (CoreStatistics(), CoreStatistics(num_waiting=3, num_waiting_deferred=3, sleep_level=1)):
        for _ in range(50):
            watch.tick(1.0)
            watch.hear(statistics)
        assert not watch.is_stalled()


def test_a_long_call_gives_the_core_its_time() -> None:
    watch = make_watch()
    watch.tick(150.0)
    assert watch.is_hung()
    assert not watch.is_hung(patience_s=200.0)
    assert not watch.is_stalled(patience_s=200.0)


def test_ticks_are_short_enough_for_both_deadlines() -> None:
    assert CoreWatch(hang_timeout_s=2.0, step_timeout_s=100.0).tick_s == 0.5
    assert CoreWatch(hang_timeout_s=100.0, step_timeout_s=2.0).tick_s == 0.5
