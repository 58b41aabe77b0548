import asyncio
import logging
import threading
import time
from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry

from headrace.aio.stall import LoopSections, LoopStallMonitor, LoopStallSettings
from headrace.errors import SettingsError

_SETTINGS = LoopStallSettings(interval_s=0.005, threshold_s=0.02)


async def _until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not is_so():
            await asyncio.sleep(0.005)


def hold_for(hold_s: float) -> None:
    end_s = time.monotonic() + hold_s
    while time.monotonic() < end_s:
        pass


def hold_the_loop_until(noticed: threading.Event) -> None:
    assert noticed.wait(20)


class _NoticesWarnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.noticed = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.noticed.set()


async def test_a_held_loop_is_counted_and_the_guilty_function_is_named() -> None:
    handler = _NoticesWarnings()
    logger = logging.getLogger("headrace.aio.stall")
    logger.addHandler(handler)
    registry = CollectorRegistry()
    try:
        async with LoopStallMonitor(_SETTINGS, registry=registry) as monitor:
            await _until(lambda: monitor.statistics().num_ticks > 0)
            hold_the_loop_until(handler.noticed)
            await _until(lambda: monitor.statistics().num_stalls > 0)
    finally:
        logger.removeHandler(handler)
    seen = monitor.statistics()
    assert seen.max_lag_s > 0.02
    assert seen.last_stack is not None
    assert "hold_the_loop_until" in seen.last_stack
    assert registry.get_sample_value("headrace_loop_stalls_total") == seen.num_stalls
    assert registry.get_sample_value("headrace_loop_lag_seconds_count") == seen.num_ticks


async def test_a_free_loop_shows_no_stall() -> None:
    async with LoopStallMonitor(LoopStallSettings(interval_s=0.005, threshold_s=5)) as monitor:
        await _until(lambda: monitor.statistics().num_ticks > 3)
    assert monitor.statistics().num_stalls == 0
    assert monitor.statistics().last_stack is None


async def test_a_monitor_is_for_one_use() -> None:
    async with LoopStallMonitor(_SETTINGS) as monitor:
        with pytest.raises(RuntimeError, match="one use"):
            monitor.start()


def test_settings_that_make_no_sense_are_refused_by_name() -> None:
    with pytest.raises(SettingsError) as refusal:
        LoopStallSettings(threshold_s=0)
    assert refusal.value.param == "threshold_s"


async def test_lag_is_given_in_total_and_by_the_marked_section_that_caused_it() -> None:
    registry = CollectorRegistry()
    sections = LoopSections()
    async with LoopStallMonitor(_SETTINGS, registry=registry, sections=sections) as monitor:
        await _until(lambda: monitor.statistics().num_ticks > 0)
        num_ticks = monitor.statistics().num_ticks
        with sections.section("tokenization"):
            hold_for(0.05)
        hold_for(0.03)  # nobody's
        await _until(lambda: monitor.statistics().num_ticks > num_ticks)
        seen = monitor.statistics()
    (section,) = seen.sections
    assert section.name == "tokenization"
    assert section.held_s >= 0.05
    assert 0.05 - _SETTINGS.interval_s <= section.lag_s <= section.held_s
    assert seen.total_lag_s >= section.lag_s + 0.03
    labels = {"section": "tokenization"}
    assert registry.get_sample_value("headrace_loop_section_seconds_total", labels) == pytest.approx(section.held_s)
    assert registry.get_sample_value("headrace_loop_section_lag_seconds_total", labels) == pytest.approx(section.lag_s)


def test_only_the_part_of_a_section_after_the_timer_was_due_is_lag() -> None:
    sections = LoopSections()
    sections.expect(time.monotonic() + 1000)
    sections.note("early", 0.5)
    sections.expect(time.monotonic() - 1000)
    sections.note("late", 0.25)
    sections.note("late", 0.5)
    sections.expect(time.monotonic())
    sections.note("across", 1000.0)
    early, late, across = sections.statistics()
    assert (early.name, early.held_s, early.lag_s) == ("early", 0.5, 0.0)
    assert (late.held_s, late.lag_s) == (0.75, 0.75)
    assert across.held_s == 1000.0
    assert 0 <= across.lag_s < 500


def test_sections_that_nobody_watches_are_counted_without_lag() -> None:
    sections = LoopSections()
    with pytest.raises(ValueError, match="in between"), sections.section("work"):
        raise ValueError("in between")
    (work,) = sections.statistics()
    assert work.held_s >= 0
    assert work.lag_s == 0
