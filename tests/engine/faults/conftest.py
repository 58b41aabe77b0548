"""A real engine over a real process, and what must hold of it after every fault."""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest_asyncio

from headrace.engine import AsyncEngineArgs, AsyncLLMEngine, RequestOutput, SamplingParams
from headrace.errors import HeadraceError

PROMPTS = [f"Mill {number} grinds {'grain and ' * (number % 7)}flour" for number in range(40)]


def engine_args(model_dir: Path, **changes: Any) -> AsyncEngineArgs:
    """So little memory for the KV cache that a dozen requests preempt each other."""
    small = {"max_model_len": 256, "kv_cache_memory_bytes": 24 * 16 * 512, "max_num_seqs": 16, "cpu_threads": 1}
    return AsyncEngineArgs(model=str(model_dir), disable_log_requests=True, **{**small, **changes})


def greedy(**params: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0, "max_tokens": 16, "ignore_eos": True, **params})


@dataclass(slots=True)
class Ends:
    """How each request ended, as its consumer saw it."""

    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def counts(self) -> Counter[str]:
        return Counter(self.reasons.values())

    async def consume(self, outputs: AsyncIterator[RequestOutput], request_id: str) -> RequestOutput | None:
        """Take all outputs; note the one end. Asserts that nothing follows it."""
        last: RequestOutput | None = None
        try:
            async for output in outputs:
                assert last is None or not last.finished, f"{request_id} went on after its end"
                last = output
        except HeadraceError as error:
            assert last is None or not last.finished, f"{request_id} failed after its end"
            self._note(request_id, type(error).__name__)
            return None
        except asyncio.CancelledError:
            self._note(request_id, "cancelled")
            raise
        assert last is not None
        assert last.finished
        self._note(request_id, str(last.outputs[0].finish_reason))
        return last

    def _note(self, request_id: str, reason: str) -> None:
        assert request_id not in self.reasons, f"{request_id} ended twice"
        self.reasons[request_id] = reason


async def assert_nothing_left(engine: AsyncLLMEngine) -> None:
    """No request, block, seat or task of one is left; the core's own accounts agree."""
    await engine.check_integrity()
    statistics = engine.statistics()
    assert (statistics.num_unfinished, statistics.num_running, statistics.num_waiting) == (0, 0, 0)
    assert statistics.num_free_blocks == statistics.num_blocks > 0


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The threads and tasks of this process, to compare with those at another time.

    The event loop's own pool, in which a tokenizer is loaded, lives as long as the loop and does not count.
    """

    threads: frozenset[threading.Thread]
    tasks: frozenset[asyncio.Task[Any]]

    @classmethod
    def now(cls) -> "Surroundings":
        threads = (thread for thread in threading.enumerate() if not thread.name.startswith("asyncio_"))
        return cls(frozenset(threads), frozenset(asyncio.all_tasks()))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tiny_model_dir: Path) -> AsyncIterator[AsyncLLMEngine]:
    async with AsyncLLMEngine.from_engine_args(engine_args(tiny_model_dir)) as engine:
        yield engine
