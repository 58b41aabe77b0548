"""What the service's cache takes in memory, as the operating system sees it, against its budget.

In a process of its own, so that what other measurements gave back is not taken again unseen.
"""

import asyncio
import multiprocessing
import os
import random
import resource
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import msgspec
import uvloop

from headrace.cli.benchmarks.corpus import mixed_text
from headrace.tokenization.service import TokenizationService
from headrace.tokenization.settings import TokenizationSettings

TITLE = "memory"
_MODEL = "model"
_MIB = 1024 * 1024
_BUDGET = 64 * _MIB
_MIN_CHARS, _MAX_CHARS = 100, 4000
"""Prompts that are kept as well as some that are too short to be."""
_CORPUS_CHARS = 400_000
_MAX_WARM_UP = 2000
_NUM_BETWEEN_LOOKS = 1000


class MemoryReport(msgspec.Struct, frozen=True, kw_only=True):
    """Growth of the resident memory since the tokenizer was loaded and warm, while distinct prompts were encoded."""

    num_prompts: int
    budget_mib: float
    grown_mib: float
    """The most that was seen."""
    accounted_mib: float
    """What the cache says that it holds, at the end."""
    num_entries: int
    num_evictions: int
    prompts_per_s: float

    @property
    def share_of_budget(self) -> float:
        return self.grown_mib / self.budget_mib


async def measure_memory(path: Path, *, num_prompts: int) -> MemoryReport:
    """Encode `num_prompts` distinct prompts of 100 to 4,000 characters, with a budget of 64 MiB for the cache."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as processes:
        measure = partial(_in_own_process, path, num_prompts)
        raw = await asyncio.get_running_loop().run_in_executor(processes, measure)
    return msgspec.msgpack.decode(raw, type=MemoryReport)


def _in_own_process(path: Path, num_prompts: int) -> bytes:
    return msgspec.msgpack.encode(uvloop.run(fill_cache(path, num_prompts=num_prompts, budget=_BUDGET)))


async def fill_cache(path: Path, *, num_prompts: int, budget: int) -> MemoryReport:
    """Only bytes bound the cache here, not entries. Call it in a fresh process, or the growth means little."""
    settings = TokenizationSettings(cache_max_bytes=budget, cache_max_entries=sys.maxsize)
    num_warm_up = min(_MAX_WARM_UP, num_prompts)
    prompts = distinct_prompts(num_warm_up + num_prompts)
    async with TokenizationService(settings) as service:
        await service.load(_MODEL, path)
        await service.wait_admitted(_MODEL)
        for _ in range(num_warm_up):
            await service.encode(next(prompts), model=_MODEL)
        before = _resident_bytes() - service.statistics().cache.num_bytes  # the warm-up's entries count as growth
        grown = 0
        begun_s = time.perf_counter()
        for number, prompt in enumerate(prompts):
            await service.encode(prompt, model=_MODEL)
            if number % _NUM_BETWEEN_LOOKS == 0:
                grown = max(grown, _resident_bytes() - before)
        elapsed_s = time.perf_counter() - begun_s
        cache = service.statistics().cache
        return MemoryReport(
            num_prompts=num_prompts,
            budget_mib=budget / _MIB,
            grown_mib=max(grown, _resident_bytes() - before) / _MIB,
            accounted_mib=cache.num_bytes / _MIB,
            num_entries=cache.num_entries,
            num_evictions=cache.num_evictions,
            prompts_per_s=num_prompts / elapsed_s,
        )


def distinct_prompts(num_prompts: int) -> Iterator[str]:
    """Each begins with its number and goes on with some stretch of one long text: quick to make a million of."""
    corpus = mixed_text("memory", _CORPUS_CHARS)
    rng = random.Random("memory")  # noqa: S311 - reproducible text, not a secret
    for number in range(num_prompts):
        begin = rng.randrange(_CORPUS_CHARS - _MAX_CHARS)
        yield f"{number} {corpus[begin : begin + rng.randint(_MIN_CHARS, _MAX_CHARS)]}"


def _resident_bytes() -> int:
    """Of this process now; where the system does not say that, the most it ever was."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
