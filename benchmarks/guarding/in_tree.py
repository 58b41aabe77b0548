"""What is timed inside a process that has a tree's package: run with `PYTHONPATH`, and as few of its names as can be.

    python in_tree.py NAME MODEL_DIR      texts as JSON on standard input; one number comes back

`tokenize-4k` and `turn-20` give milliseconds, `hit` microseconds, `front` tokens/s.
"""

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import uvloop

from headrace.engine import AsyncEngineArgs, AsyncLLMEngine, RequestOutputKind, SamplingParams
from headrace.engine.client.host import ProcessHost
from headrace.tokenization.service import TokenizationService

_MODEL = "model"
_NUM_HITS = 2000
_NUM_STREAMS, _NUM_TOKENS, _NUM_PROMPT_TOKENS = 128, 64, 32


async def tokenize_4k(service: TokenizationService, texts: Sequence[str]) -> float:
    return await _median_of_each(service, texts) * 1e3


async def turn_20(service: TokenizationService, texts: Sequence[str]) -> float:
    """The texts grow as a chat does; only the last one counts."""
    for text in texts[:-1]:
        await service.encode(text, model=_MODEL)
    return await _median_of_each(service, texts[-1:]) * 1e3


async def hit(service: TokenizationService, texts: Sequence[str]) -> float:
    text = texts[0]
    await service.encode(text, model=_MODEL)
    begun_s = time.perf_counter()
    for _ in range(_NUM_HITS):
        await service.encode(text, model=_MODEL)
    return (time.perf_counter() - begun_s) / _NUM_HITS * 1e6


async def _median_of_each(service: TokenizationService, texts: Sequence[str]) -> float:
    times_s = []
    for text in texts:
        begun_s = time.perf_counter()
        await service.encode(text, model=_MODEL)
        times_s.append(time.perf_counter() - begun_s)
    return statistics.median(times_s)


_OF_SERVICE: dict[str, Callable[[TokenizationService, Sequence[str]], Awaitable[float]]] = {
    "tokenize-4k": tokenize_4k,
    "turn-20": turn_20,
    "hit": hit,
}


async def of_service(name: str, model: Path, texts: Sequence[str]) -> float:
    async with TokenizationService() as service:
        await service.load(_MODEL, model)
        await service.wait_admitted(_MODEL)
        await service.encode("The first call builds what the others use.", model=_MODEL)
        return await _OF_SERVICE[name](service, texts)


async def front(model: Path) -> float:
    """Output tokens/s of many streams over a core that computes nothing."""
    args = AsyncEngineArgs(model=str(model), max_num_seqs=_NUM_STREAMS, disable_log_requests=True)
    host = ProcessHost(module="headrace.cli.benchmarks.null_core")
    params = SamplingParams(
        temperature=0.0, ignore_eos=True, max_tokens=_NUM_TOKENS, output_kind=RequestOutputKind.DELTA
    )
    async with AsyncLLMEngine(args.create_engine_config(), host=host) as engine:

        async def stream(number: int) -> None:
            prompt = [300 + (number * 7 + at) % 500 for at in range(_NUM_PROMPT_TOKENS)]
            async for _ in engine.generate(prompt, params, f"stream {number}"):
                pass

        await asyncio.gather(*(stream(-1 - number) for number in range(8)))  # warm-up
        begun_s = time.perf_counter()
        await asyncio.gather(*(stream(number) for number in range(_NUM_STREAMS)))
        return _NUM_STREAMS * _NUM_TOKENS / (time.perf_counter() - begun_s)


def main() -> None:
    name, model = sys.argv[1], Path(sys.argv[2])
    texts: list[str] = json.load(sys.stdin)
    print(json.dumps(uvloop.run(front(model) if name == "front" else of_service(name, model, texts))))


if __name__ == "__main__":
    main()
