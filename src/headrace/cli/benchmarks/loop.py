"""`headrace bench loop`: how late an event loop comes while others have it tokenize.

Scenarios take turns, a round of all after a round of all, each with text of its own.
"""

import asyncio
import gc
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

import msgspec

from headrace.aio.tasks import TaskOwner
from headrace.cli.benchmarks.baselines import VllmMicroBatching
from headrace.cli.benchmarks.corpus import mixed_text, shuffled
from headrace.cli.benchmarks.encoding import Encoders
from headrace.cli.benchmarks.lag import note_lags, percentile
from headrace.cli.benchmarks.rounds import DifferentResultError, plain

_MIN_S = 2.0
"""A fast way sends more prompts than a slow one, so that the lags of both are those of many ticks."""
_MAX_PROMPTS_EACH = 8

Encode = Callable[[str], Awaitable[Any]]


class LagRow(msgspec.Struct, frozen=True, kw_only=True):
    """The loop's lag in one scenario, in milliseconds: medians over the rounds, and the worst round's maximum."""

    scenario: str
    p50_ms: float
    p99_9_ms: float
    p99_9_above_idle_ms: float
    max_ms: float
    max_above_idle_ms: float
    worst_ms: float
    prompts_per_s: float


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
            base = encoders.text_of_tokens(("loop", number, scenario), num_tokens)
            prompts = [_prompts(base, client) for client in range(num_clients if encode else 0)]
            gc.collect()
            rounds.setdefault(scenario, []).append(await _lag_while(encode, prompts))
            on_round()
    return lag_rows(rounds)


def _prompts(base: str, seed: object) -> list[str]:
    """All that one client may come to send: the paragraphs of `base`, each time in an order that nobody else sends."""
    return [shuffled(base, (seed, number)) for number in range(_MAX_PROMPTS_EACH)]


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
        owner.spawn(note_lags(lags), name="lag")
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


def lag_rows(rounds: Mapping[str, Sequence[tuple[Sequence[float], float]]]) -> list[LagRow]:
    """Lags in seconds and prompts per second, by scenario and round; the first scenario is the idle loop."""
    idle_p99_9_ms, idle_max_ms = _medians_ms(next(iter(rounds.values())))
    rows = []
    for scenario, of_scenario in rounds.items():
        p99_9_ms, max_ms = _medians_ms(of_scenario)
        row = LagRow(
            scenario=scenario,
            p50_ms=statistics.median(percentile(lags, 0.5) for lags, _ in of_scenario) * 1e3,
            p99_9_ms=p99_9_ms,
            p99_9_above_idle_ms=p99_9_ms - idle_p99_9_ms,
            max_ms=max_ms,
            max_above_idle_ms=max_ms - idle_max_ms,
            worst_ms=max(max(lags) for lags, _ in of_scenario) * 1e3,
            prompts_per_s=statistics.median(rate for _, rate in of_scenario),
        )
        rows.append(row)
    return rows


def _medians_ms(rounds: Sequence[tuple[Sequence[float], float]]) -> tuple[float, float]:
    """Of the 99.9th percentile and of the maximum."""
    p99_9_s = statistics.median(percentile(lags, 0.999) for lags, _ in rounds)
    return p99_9_s * 1e3, statistics.median(max(lags) for lags, _ in rounds) * 1e3
