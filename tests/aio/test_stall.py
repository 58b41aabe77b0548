import asyncio
import logging
import threading
from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry

from headrace.aio.stall import LoopStallMonitor, LoopStallSettings
from headrace.errors import SettingsError

_SETTINGS = LoopStallSettings(interval_s=0.005, threshold_s=0.02)


async def _until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not is_so():
            await asyncio.sleep(0.005)


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
