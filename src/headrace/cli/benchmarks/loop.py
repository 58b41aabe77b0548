"""`headrace bench loop`: how late an event loop comes while others have it tokenize, and what short prompts wait for.

Scenarios take turns, a round of all after a round of all, each with text of its own.
"""

import asyncio
import gc
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import msgspec

from headrace.aio.tasks import TaskOwner
from headrace.cli.benchmarks.baselines import VllmMicroBatching
from headrace.cli.benchmarks.corpus import hostile_text, mixed_text, shuffled, text_of_tokens
from headrace.cli.benchmarks.encoding import MODEL, Encoders, hostile_units
from headrace.cli.benchmarks.rounds import DifferentResultError, plain

_TICK_S = 0.001
_NUM_SHORT_CALLERS = 8
_MIN_PROMPTS = 50
_SHORT_CHARS = 500
_MIN_S = 2.0
"""A fast way sends more prompts than a slow one, so that the lags of both are those of many ticks."""
_MAX_PROMPTS_EACH = 8

Encode = Callable[[str], Awaitable[Any]]


class LagRow(msgspec.Struct, frozen=True, kw_only=True):
    """The loop's lag in one scenario, in milliseconds: medians over the rounds, and the worst round's maximum."""

    scenario: str
    p50_ms: float
    p99_9_ms: float
    max_ms: float
    worst_ms: float
    prompts_per_s: float


class WaitRow(msgspec.Struct, frozen=True, kw_only=True):
    """What short prompts waited, in milliseconds, alone or beside one hostile text: medians over the rounds."""

    scenario: str
    p50_ms: float
    p99_ms: float
    num_prompts: int


async def measure_lag(
    encoders: Encoders, *, num_clients: int, num_tokens: int, num_rounds: int, on_round: Callable[[], None]
) -> list[LagRow]:
    """The lag while every client sends prompts of `num_tokens` one after another, all distinct: one, and more while two
    seconds have not passed. Raises DifferentResultError.
    """
    await _check_equal(encoders)
    rounds: dict[str, list[tuple[list[float], float]]] = {}
    for number in range(num_rounds):
        for scenario, encode in scenarios(encoders).items():
            seed = ("loop", number, scenario)
            prompts = [_prompts((*seed, client), num_tokens) for client in range(num_clients if encode else 0)]
            gc.collect()
            rounds.setdefault(scenario, []).append(await _lag_while(encode, prompts))
            on_round()
    return [_lag_row(scenario, of_scenario) for scenario, of_scenario in rounds.items()]


def _prompts(seed: object, num_tokens: int) -> list[str]:
    """All that one client may come to send."""
    text = text_of_tokens(seed, num_tokens)
    return [text, *(shuffled(text, (seed, number)) for number in range(1, _MAX_PROMPTS_EACH))]


def scenarios(encoders: Encoders) -> dict[str, Encode | None]:
    """Ways to encode from a loop; None only waits."""
    loop = asyncio.get_running_loop()
    return {
        "idle loop": None,
        "headrace service": encoders.service_encode,
        "vLLM's micro-batching": _VllmWay(encoders).encode,
        "run_in_executor(tokenizer.encode)": lambda text: loop.run_in_executor(None, _library_ids, encoders, text),
        "inline": encoders.library_encode,
    }


def _library_ids(encoders: Encoders, text: str) -> Any:
    return encoders.library.encode(text).ids


class _VllmWay:
    """Micro-batching that is started for the first prompt and ended after the last."""

    def __init__(self, encoders: Encoders) -> None:
        self._encoders = encoders
        self._stack = AsyncExitStack()
        self._batching: VllmMicroBatching | None = None
        self._num_inside = 0

    async def encode(self, text: str) -> Any:
        self._num_inside += 1
        try:
            if self._batching is None:
                self._batching = VllmMicroBatching(self._encode_batch)
                await self._stack.enter_async_context(self._batching)
            return await self._batching.encode(text)
        finally:
            self._num_inside -= 1
            if not self._num_inside:
                self._batching = None
                await self._stack.aclose()

    def _encode_batch(self, texts: Sequence[str]) -> list[Any]:
        """What transformers' call does: the library's batch call, which computes offsets too."""
        return [encoding.ids for encoding in self._encoders.library.encode_batch(list(texts))]


async def _check_equal(encoders: Encoders) -> None:
    text = mixed_text("loop check", 5000)
    results = {name: plain(await encode(text)) for name, encode in scenarios(encoders).items() if encode is not None}
    expected = results["inline"]
    for name, result in results.items():
        if result != expected:
            raise DifferentResultError(f"{name!r} gives other ids than the bare tokenizer")


async def _lag_while(encode: Encode | None, prompts: Sequence[Sequence[str]]) -> tuple[list[float], float]:
    """Lags in seconds, and prompts per second."""
    lags: list[float] = []
    async with TaskOwner("loop benchmark") as owner:
        owner.spawn(_note_lags(lags), name="lag")
        await asyncio.sleep(0.05)
        lags.clear()
        begun_s = time.perf_counter()
        if encode is None:
            await asyncio.sleep(_MIN_S)
            num_prompts = 0
        else:
            tasks = [owner.spawn(_send(encode, own, until_s=begun_s + _MIN_S), name="client") for own in prompts]
            num_prompts = sum([await task for task in tasks])
        elapsed_s = time.perf_counter() - begun_s
        await asyncio.sleep(0.05)  # a loop that was held notes its lag when it is let go
    return lags, num_prompts / elapsed_s


async def _send(encode: Encode, prompts: Sequence[str], *, until_s: float) -> int:
    """How many prompts were sent and encoded: one at least."""
    for number, prompt in enumerate(prompts):
        if number and time.perf_counter() > until_s:
            return number
        await encode(prompt)
    return len(prompts)


async def _note_lags(lags: list[float]) -> None:
    while True:
        due_s = time.perf_counter() + _TICK_S
        await asyncio.sleep(_TICK_S)
        lags.append(max(0.0, time.perf_counter() - due_s))


def _lag_row(scenario: str, rounds: Sequence[tuple[list[float], float]]) -> LagRow:
    maxima = [max(lags) * 1e3 for lags, _ in rounds]
    return LagRow(
        scenario=scenario,
        p50_ms=statistics.median(percentile(lags, 0.5) * 1e3 for lags, _ in rounds),
        p99_9_ms=statistics.median(percentile(lags, 0.999) * 1e3 for lags, _ in rounds),
        max_ms=statistics.median(maxima),
        worst_ms=max(maxima),
        prompts_per_s=statistics.median(rate for _, rate in rounds),
    )


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]


async def measure_short_prompts(
    encoders: Encoders, *, num_hostile_chars: int, num_rounds: int, on_round: Callable[[], None]
) -> list[WaitRow]:
    """What eight callers with short prompts wait in the service, alone and while one hostile text is encoded."""
    names: list[str | None] = [None, *hostile_units(encoders)]
    waits: dict[str | None, list[list[float]]] = {name: [] for name in names}
    for number in range(num_rounds):
        for name in names:
            beside = None if name is None else f"{number} " + hostile_text(number, num_hostile_chars, unit=name)
            waits[name].append(await _waits_beside(encoders, beside, seed=(number, name)))
            on_round()
    return [_wait_row("alone" if name is None else f"beside: {name}", of_name) for name, of_name in waits.items()]


async def _waits_beside(encoders: Encoders, beside: str | None, *, seed: object) -> list[float]:
    """Each caller sends prompt after prompt until the hostile text is done, and at least 50."""
    waits: list[float] = []
    is_done = asyncio.Event()
    prompts = [
        [mixed_text((seed, caller, prompt), _SHORT_CHARS) for prompt in range(_MIN_PROMPTS)]
        for caller in range(_NUM_SHORT_CALLERS)
    ]

    async def send(own: Sequence[str]) -> None:
        number = 0
        while number < _MIN_PROMPTS or not is_done.is_set():
            text = f"{own[number % _MIN_PROMPTS]} {number}"  # no cache knows it
            begun_s = time.perf_counter()
            await encoders.service.encode(text, model=MODEL)
            waits.append(time.perf_counter() - begun_s)
            number += 1
            await asyncio.sleep(0)

    async with TaskOwner("short prompts") as owner:
        callers = [owner.spawn(send(own), name="short") for own in prompts]
        if beside is not None:
            await encoders.service.encode(beside, model=MODEL)
        is_done.set()
        for caller in callers:
            await caller
    return waits


def _wait_row(scenario: str, rounds: Sequence[Sequence[float]]) -> WaitRow:
    return WaitRow(
        scenario=scenario,
        p50_ms=statistics.median(percentile(waits, 0.5) * 1e3 for waits in rounds),
        p99_ms=statistics.median(percentile(waits, 0.99) * 1e3 for waits in rounds),
        num_prompts=sum(map(len, rounds)),
    )
