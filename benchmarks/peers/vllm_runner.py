"""vLLM's CPU build through its AsyncLLM, for `engine_child`; runs in that peer's environment."""

import asyncio
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

Ids = list[list[int]]


def load(model: Path, options: dict[str, Any]) -> "VllmEngine":
    os.environ.update(
        VLLM_CPU_KVCACHE_SPACE="1",  # GiB: the least it takes; by default it asks for most of the machine's memory
        VLLM_CPU_OMP_THREADS_BIND=str(options["core"]),
        VLLM_NO_USAGE_STATS="1",
        VLLM_LOGGING_LEVEL="WARNING",
        HF_HUB_OFFLINE="1",
    )
    return VllmEngine(model, options)


class VllmEngine:
    has_prefix_cache = True

    def __init__(self, model: Path, options: dict[str, Any]) -> None:
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        args = AsyncEngineArgs(
            model=str(model),
            dtype=options["dtype"],
            max_model_len=options["max_model_len"],
            max_num_seqs=options["num_streams"],
            enable_prefix_caching=True,
            disable_log_stats=True,
            enforce_eager=bool(options.get("eager", False)),
        )
        self._numbers = itertools.count()
        self._runner = asyncio.Runner()

        async def start() -> Any:
            return AsyncLLM.from_engine_args(args)  # its output handler needs a running loop

        self._engine = self._runner.run(start())

    def generate(self, prompts: Ids, num_tokens: int, on_token: Callable[[], None]) -> Ids:
        return self._runner.run(self._generate_all(prompts, num_tokens, on_token))

    def close(self) -> None:
        self._engine.shutdown()

    async def _generate_all(self, prompts: Ids, num_tokens: int, on_token: Callable[[], None]) -> Ids:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._generate(ids, num_tokens, on_token)) for ids in prompts]
        return [task.result() for task in tasks]

    async def _generate(self, prompt: list[int], num_tokens: int, on_token: Callable[[], None]) -> list[int]:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            temperature=0.0,
            max_tokens=num_tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        ids: list[int] = []
        prompt_of_ids = {"prompt_token_ids": prompt}
        async for output in self._engine.generate(prompt_of_ids, params, f"bench-{next(self._numbers)}"):
            ids += output.outputs[0].token_ids
            on_token()
        return ids
