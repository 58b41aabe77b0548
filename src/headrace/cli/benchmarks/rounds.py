"""Times several ways of doing the same thing, in turns, so that what else the machine does hits all alike.

Ways are compared only after their results were: a way that gives another result is no way to be faster.
"""

import asyncio
import gc
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from headrace.errors import HeadraceError


class DifferentResultError(HeadraceError):
    """Two ways that are compared gave different results: the one defect that no speed makes up for."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """Ways to do one thing. The first is what the others are compared with."""

    title: str
    unit: str
    """`ms` or `us`, for one operation."""
    make_input: Callable[[int], Any]
    """The input of a round, by its number; fresh, so that no cache knows it."""
    ways: Mapping[str, Callable[[Any], Awaitable[Any]]]
    prepare: Mapping[str, Callable[[Any], Awaitable[object]]] = field(default_factory=dict)
    """What a way does before it is timed: filling the cache that it is to hit."""
    num_operations: int = 1
    """In one input."""
    is_timed_inside: bool = False
    """Ways return `(seconds, result)` and leave out what is not theirs."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One way's times, for one operation, in the group's unit."""

    group: str
    way: str
    unit: str
    median: float
    lowest: float
    highest: float
    times_faster: float
    """Than the group's first way, by medians of the same rounds."""


_UNITS = {"ms": 1e3, "us": 1e6}


async def measure(group: Group, *, num_rounds: int, on_round: Callable[[], None]) -> list[Row]:
    """A row for each way. The round before the first is not counted; there the results are compared.

    Raises DifferentResultError.
    """
    seconds: dict[str, list[float]] = {way: [] for way in group.ways}
    names = list(group.ways)
    for number in range(num_rounds + 1):
        order = names[number % len(names) :] + names[: number % len(names)]
        results = {name: await _time(group, name, number) for name in order}
        if number == 0:
            _compare(group, {name: result for name, (_, result) in results.items()})
        else:
            for name, (elapsed_s, _) in results.items():
                seconds[name].append(elapsed_s / group.num_operations)
        on_round()
    return _rows(group, seconds)


async def _time(group: Group, name: str, number: int) -> tuple[float, Any]:
    gc.collect()  # before what is prepared: it walks through all of the memory and leaves the processor's caches cold
    value = group.make_input(number)  # anew for each: a string that was hashed or encoded before is cheaper
    if (prepare := group.prepare.get(name)) is not None:
        await prepare(value)
    await asyncio.sleep(0)  # a request comes with a round of the loop of its own, not at the end of another's
    begun_s = time.perf_counter()
    result = await group.ways[name](value)
    elapsed_s = time.perf_counter() - begun_s
    return result if group.is_timed_inside else (elapsed_s, result)


def _compare(group: Group, results: Mapping[str, Any]) -> None:
    first, *others = results
    expected = plain(results[first])
    for name in others:
        if plain(results[name]) != expected:
            raise DifferentResultError(f"{group.title}: {name!r} and {first!r} give different results")


def plain(result: Any) -> Any:
    """Ids in any form as lists, text as it is."""
    if isinstance(result, np.ndarray):
        return result.tolist()
    return [plain(item) for item in result] if isinstance(result, list | tuple) else result


def _rows(group: Group, seconds: Mapping[str, Sequence[float]]) -> list[Row]:
    baseline_s = statistics.median(next(iter(seconds.values())))
    scale = _UNITS[group.unit]
    return [
        Row(
            group=group.title,
            way=way,
            unit=group.unit,
            median=statistics.median(times) * scale,
            lowest=min(times) * scale,
            highest=max(times) * scale,
            times_faster=baseline_s / statistics.median(times),
        )
        for way, times in seconds.items()
    ]
