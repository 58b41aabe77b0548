"""How late an event loop comes, noted every millisecond, and percentiles of such numbers."""

import asyncio
import time
from collections.abc import Sequence

_TICK_S = 0.001


async def note_lags(lags: list[float]) -> None:
    """Append a lag in seconds every millisecond, until cancelled."""
    while True:
        due_s = time.perf_counter() + _TICK_S
        await asyncio.sleep(_TICK_S)
        lags.append(max(0.0, time.perf_counter() - due_s))


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]
