"""The time by which limits are counted."""

import time
from collections.abc import Callable


def steady_clock() -> Callable[[], float]:
    """Seconds since the epoch as they were at the start, from then on counted steadily: a wall clock that is put back
    would give every limit anew, or keep everybody out."""
    offset_s = time.time() - time.monotonic()
    return lambda: time.monotonic() + offset_s
