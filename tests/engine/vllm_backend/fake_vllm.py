"""A module that looks like vLLM where our back end touches it: answers with the prompt's ids, over and over."""

import asyncio
import itertools
import sys
import types
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np


class EngineDeadError(Exception):
    pass


class Params:
    """Remembers its keywords; refuses one that a test names as vLLM would, by ValueError."""

    def __init__(self, **given: Any) -> None:
        if given.get("temperature") == 1.5:
            raise ValueError("temperature 1.5 is refused by the fake")
        self.__dict__.update(given)
        self.given = given


@dataclass
class FakeAsyncLLM:
    arguments: dict[str, Any]
    stat_loggers: list[Any]
    errored: bool = False
    is_held: bool = False
    was_shut_down: bool = False
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    requests: dict[str, Any] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)

    @classmethod
    def from_engine_args(cls, engine_args: Params, *, stat_loggers: Sequence[Any]) -> "FakeAsyncLLM":
        config = SimpleNamespace(cache_config=SimpleNamespace(num_gpu_blocks=100, block_size=32))
        made = [factory(config, 0) for factory in stat_loggers]
        engine = cls(engine_args.given, made)
        CREATED.append(engine)
        return engine

    async def generate(
        self, prompt: Any, sampling_params: Any, request_id: str, *, lora_request: Any = None, priority: int = 0
    ) -> AsyncGenerator[Any, None]:
        self.requests[request_id] = SimpleNamespace(
            prompt=prompt, params=sampling_params, lora=lora_request, priority=priority
        )
        ids = itertools.cycle(prompt["prompt_token_ids"])
        try:
            for position in range(sampling_params.max_tokens):
                await asyncio.sleep(0)
                while self.is_held:
                    await asyncio.sleep(0.001)
                if self.errored:
                    raise EngineDeadError("the fake engine core died")
                token_id = next(ids)
                is_stop = token_id in sampling_params.stop_token_ids
                is_last = is_stop or position + 1 == sampling_params.max_tokens
                self._tell(num_prompt=len(prompt["prompt_token_ids"]) if position == 0 else 0)
                yield self._output(prompt, sampling_params, token_id, is_last=is_last, is_stop=is_stop)
                if is_last:
                    return
        finally:
            self.left.append(request_id)

    async def encode(
        self, prompt: Any, pooling_params: Any, request_id: str, lora_request: Any = None, *, priority: int = 0
    ) -> AsyncGenerator[Any, None]:
        self.requests[request_id] = SimpleNamespace(params=pooling_params)
        await asyncio.sleep(0)
        yield SimpleNamespace(
            outputs=SimpleNamespace(data=np.array([3.0, 4.0])), num_cached_tokens=0, prompt_token_ids=[1]
        )

    async def sleep(self, level: int, mode: str) -> None:
        self.calls.append(("sleep", level, mode))

    async def wake_up(self, tags: list[str] | None) -> bool:
        self.calls.append(("wake_up", tags))
        return True

    async def is_sleeping(self) -> bool:
        return bool(self.calls) and self.calls[-1][0] == "sleep"

    async def reset_prefix_cache(self) -> bool:
        return True

    async def add_lora(self, lora_request: Any) -> bool:
        self.calls.append(("add_lora", lora_request.given))
        return True

    async def list_loras(self) -> set[int]:
        return {7, 3}

    async def collective_rpc(self, method: str, timeout: float | None, args: tuple[Any, ...], kwargs: Any) -> list[Any]:
        if method == "explode":
            raise RuntimeError("the worker exploded")
        return [method, *args]

    def shutdown(self) -> None:
        self.was_shut_down = True

    def _tell(self, *, num_prompt: int) -> None:
        for logger in self.stat_loggers:
            logger.record(
                SimpleNamespace(
                    num_running_reqs=1,
                    num_waiting_reqs=2,
                    kv_cache_usage=0.25,
                    prefix_cache_stats=SimpleNamespace(queries=num_prompt, hits=0),
                ),
                SimpleNamespace(num_prompt_tokens=num_prompt, num_generation_tokens=1, num_preempted_reqs=0),
            )

    def _output(self, prompt: Any, params: Any, token_id: int, *, is_last: bool, is_stop: bool) -> Any:
        logprobs = None
        if getattr(params, "logprobs", None) is not None:
            logprobs = [{5: SimpleNamespace(logprob=-0.1, rank=1), token_id: SimpleNamespace(logprob=-2.0, rank=9)}]
        completion = SimpleNamespace(
            token_ids=[token_id],
            finish_reason=("stop" if is_stop else "length") if is_last else None,
            stop_reason=token_id if is_stop else None,
            logprobs=logprobs,
        )
        return SimpleNamespace(
            outputs=[completion],
            prompt_token_ids=prompt["prompt_token_ids"],
            prompt_logprobs=None,
            num_cached_tokens=1,
        )


CREATED: list[FakeAsyncLLM] = []


def modules() -> dict[str, types.ModuleType]:
    """What `import vllm` and its kin give, by name."""
    contents: dict[str, dict[str, Any]] = {
        "vllm": {},
        "vllm.engine": {},
        "vllm.engine.arg_utils": {"AsyncEngineArgs": Params},
        "vllm.inputs": {"TokensPrompt": dict},
        "vllm.lora": {},
        "vllm.lora.request": {"LoRARequest": Params},
        "vllm.pooling_params": {"PoolingParams": Params},
        "vllm.sampling_params": {
            "RequestOutputKind": SimpleNamespace(DELTA="delta"),
            "SamplingParams": Params,
            "StructuredOutputsParams": Params,
        },
        "vllm.v1": {},
        "vllm.v1.engine": {},
        "vllm.v1.engine.async_llm": {"AsyncLLM": FakeAsyncLLM},
        "vllm.v1.engine.exceptions": {"EngineDeadError": EngineDeadError},
    }
    made = {}
    for name, names in contents.items():
        made[name] = types.ModuleType(name)
        made[name].__dict__.update(names)
    return made


def without_vllm() -> dict[str, None]:
    """As if it were not installed."""
    return dict.fromkeys([*modules(), *(name for name in sys.modules if name.split(".")[0] == "vllm")])
