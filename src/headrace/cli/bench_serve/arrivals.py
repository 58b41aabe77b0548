"""When requests are sent. Pure."""

import math
import random


def arrival_times_s(num_requests: int, *, rate: float, burstiness: float, seed: int) -> list[float]:
    """Seconds from the start, ascending from 0: gaps of a gamma distribution of shape `burstiness` and mean 1 / `rate`.

    A shape of 1 is a Poisson process. An infinite rate sends everything at once.
    """
    if math.isinf(rate):
        return [0.0] * num_requests
    draw = random.Random(seed)  # noqa: S311 - the same load in every run
    times, now = [], 0.0
    for _ in range(num_requests):
        times.append(now)
        now += draw.gammavariate(burstiness, 1.0 / (rate * burstiness))
    return times
