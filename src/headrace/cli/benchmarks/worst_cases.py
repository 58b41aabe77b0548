"""Texts that encoders are slow at: their time, the loop's lag meanwhile, and what short prompts wait beside them.

Each case is compared with the same callers alone, just before it.
"""

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from headrace.aio.tasks import TaskOwner
from headrace.cli.benchmarks.corpus import HOSTILE, hostile_text, mixed_text
from headrace.cli.benchmarks.encoding import Encoders
from headrace.cli.benchmarks.lag import note_lags, percentile
from headrace.cli.benchmarks.rounds import DifferentResultError, plain

TITLE = "worst cases"
_NUM_CALLERS = 8
_NUM_PROMPTS = 100
_PAUSE_S = 0.002
_SHORT_CHARS = 500
_MAX_TEXTS = 10


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """What short prompts waited and the loop's lag meanwhile, in milliseconds, over all rounds."""

    p50_ms: float
    p99_ms: float
    lag_p99_9_ms: float
    lag_max_ms: float
    """Of the median round."""


class WorstCaseRow(msgspec.Struct, frozen=True, kw_only=True):
    case: str
    num_chars: int
    tokenizers_ms: float
    """The bare library's call, once, with nothing beside it."""
    service_ms: float
    """One such text through the service, with short prompts beside it."""
    alone: Waits
    beside: Waits

    @property
    def p50_ratio(self) -> float:
        return self.beside.p50_ms / self.alone.p50_ms

    @property
    def p99_ratio(self) -> float:
        return self.beside.p99_ms / self.alone.p99_ms


@dataclass(frozen=True, kw_only=True)
class _Round:
    waits: Sequence[float]
    lags: Sequence[float]
    text_times: Sequence[float]


def case_names(encoders: Encoders) -> list[str]:
    """What hostile texts are made of: every alphabet, and one special token of this tokenizer."""
    special = encoders.tokenizer.token_strings(sorted(encoders.tokenizer.special_token_ids)[:1])
    return [*HOSTILE, *special]


async def measure_worst_cases(
    encoders: Encoders, *, num_chars: int, num_rounds: int, on_round: Callable[[], None]
) -> list[WorstCaseRow]:
    """Raises DifferentResultError where the service gives other ids than the library."""
    rows = []
    for name in case_names(encoders):
        text = await asyncio.to_thread(hostile_text, name, num_chars, unit=name)
        library_s = await _compare(encoders, name, text)
        alone, beside = [], []
        for number in range(num_rounds):
            alone.append(await _measure(encoders, [], seed=(name, number, "alone")))
            # Each begins differently, so that the service does not know it, and is shorter by one, so that an encoder
            # which keeps words does not know the one long word either.
            starts = range(number * _MAX_TEXTS + 1, (number + 1) * _MAX_TEXTS + 1)
            texts = [f"{start} {text[start:]}" for start in starts]
            beside.append(await _measure(encoders, texts, seed=(name, number)))
            on_round()
        rows.append(
            WorstCaseRow(
                case=name,
                num_chars=num_chars,
                tokenizers_ms=library_s * 1e3,
                service_ms=statistics.median(time_s for each in beside for time_s in each.text_times) * 1e3,
                alone=_waits(alone),
                beside=_waits(beside),
            )
        )
    return rows


async def _compare(encoders: Encoders, name: str, text: str) -> float:
    """What the library takes, in seconds."""
    begun_s = time.perf_counter()
    expected = encoders.library.encode(text).ids
    elapsed_s = time.perf_counter() - begun_s
    if plain(await encoders.service_encode(text)) != expected:
        raise DifferentResultError(f"1 text of {name!r}: the service gives other ids than the bare tokenizer")
    return elapsed_s


async def _measure(encoders: Encoders, texts: Sequence[str], *, seed: object) -> _Round:
    """Callers send short prompts, 100 each at least, while `texts` are encoded one after another."""
    waits: list[float] = []
    lags: list[float] = []
    text_times: list[float] = []
    prompts = [
        [mixed_text((seed, caller, prompt), _SHORT_CHARS) for prompt in range(_NUM_PROMPTS)]
        for caller in range(_NUM_CALLERS)
    ]
    is_done = asyncio.Event()

    async def send(own: Sequence[str]) -> None:
        number = 0
        while number < _NUM_PROMPTS or not is_done.is_set():
            prompt = f"{own[number % _NUM_PROMPTS]} {number}"  # no cache knows it
            begun_s = time.perf_counter()
            await encoders.service_encode(prompt)
            waits.append(time.perf_counter() - begun_s)
            number += 1
            await asyncio.sleep(_PAUSE_S)

    async with TaskOwner("worst cases") as owner:
        owner.spawn(note_lags(lags), name="lag")
        callers = [owner.spawn(send(own), name="short prompts") for own in prompts]
        for text in texts:
            begun_s = time.perf_counter()
            await encoders.service_encode(text)
            text_times.append(time.perf_counter() - begun_s)
            if len(waits) >= _NUM_CALLERS * _NUM_PROMPTS:
                break
        is_done.set()
        for caller in callers:
            await caller
    return _Round(waits=waits, lags=lags, text_times=text_times)


def _waits(rounds: Sequence[_Round]) -> Waits:
    waits = [wait for each in rounds for wait in each.waits]
    lags = [lag for each in rounds for lag in each.lags]
    return Waits(
        p50_ms=percentile(waits, 0.5) * 1e3,
        p99_ms=percentile(waits, 0.99) * 1e3,
        lag_p99_9_ms=percentile(lags, 0.999) * 1e3,
        lag_max_ms=statistics.median(max(each.lags) for each in rounds) * 1e3,
    )
