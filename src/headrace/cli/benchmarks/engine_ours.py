"""Our own engine, for `engine_child`: `AsyncLLMEngine` with its core in a process of its own, as its users have it."""

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path

import uvloop

from headrace.aio.tasks import TaskOwner
from headrace.cli.benchmarks.engine_child import Ids, Json
from headrace.engine import AsyncEngineArgs, AsyncLLMEngine, RequestOutputKind, SamplingParams
from headrace.engine.model_config import load_model_config
from headrace.engine.settings import FrontEndSettings

_NEVER_HUNG_S = 24 * 3600.0
"""While another engine measures, this one is stopped by a signal; it is not to be taken for hung after that."""


def load(model: Path, options: Json) -> "OurEngine":
    """`options`: dtype, quantization or None, and how many streams of how many tokens the KV cache is to hold."""
    return OurEngine(engine_args(model, options))


def engine_args(model: Path, options: Json) -> AsyncEngineArgs:
    num_streams, stream_len, max_model_len = (_whole(options[name]) for name in _SIZES)
    dtype = str(options["dtype"])
    config = load_model_config(str(model), tokenizer=None, served_model_name=None, max_model_len=max_model_len)
    num_cached_tokens = max(num_streams * stream_len, max_model_len)
    more = {"quantization": options["quantization"]} if options.get("quantization") else {}
    return AsyncEngineArgs(
        model=str(model),
        dtype=dtype,  # type: ignore[arg-type]  # checked by AsyncEngineArgs
        max_model_len=max_model_len,
        max_num_seqs=num_streams,
        kv_cache_memory_bytes=num_cached_tokens * config.kv_values_per_token * (4 if dtype == "float32" else 2),
        cpu_threads=1,
        disable_log_requests=True,
        **more,  # type: ignore[arg-type]  # see above
    )


_SIZES = ("num_streams", "stream_len", "max_model_len")


def _whole(value: object) -> int:
    assert isinstance(value, int)
    return value


class OurEngine:
    """Blocking calls of an engine on an event loop that runs only during them."""

    has_prefix_cache = True

    def __init__(self, args: AsyncEngineArgs) -> None:
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        settings = FrontEndSettings(hang_timeout_s=_NEVER_HUNG_S)
        self._engine = AsyncLLMEngine.from_engine_args(args, settings=settings)
        self._numbers = itertools.count()
        self._runner.run(self._engine.start_background_loop())

    def generate(self, prompts: Ids, num_tokens: int, on_token: Callable[[], None]) -> Ids:
        return self._runner.run(self._generate_all(prompts, num_tokens, on_token))

    def close(self) -> None:
        self._runner.run(self._engine.shutdown_background_loop())
        self._runner.close()

    async def _generate_all(self, prompts: Ids, num_tokens: int, on_token: Callable[[], None]) -> Ids:
        async with TaskOwner("streams") as owner:
            tasks = [owner.spawn(self._generate(ids, num_tokens, on_token), name="stream") for ids in prompts]
            return [await task for task in tasks]

    async def _generate(self, prompt: list[int], num_tokens: int, on_token: Callable[[], None]) -> list[int]:
        params = SamplingParams(
            temperature=0.0,
            max_tokens=num_tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        ids: list[int] = []
        async for output in self._engine.generate(prompt, params, f"bench-{next(self._numbers)}"):
            ids += output.outputs[0].token_ids
            on_token()
        return ids
