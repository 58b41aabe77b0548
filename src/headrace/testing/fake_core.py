"""An engine core without a model: it answers a prompt with its own token ids, over and over, one a step.

Deterministic, and the test decides when it steps, hangs or fails. Put it behind `ThreadHost(build_core=...)`, or run
this module as the core's process (`ProcessHost(module="headrace.testing.fake_core")`). Needs no torch.
"""

import dataclasses
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from headrace.engine.config import CacheConfig, EngineConfig, ExecutionConfig, SchedulerConfig, SchedulingPolicy
from headrace.engine.core.process import run_core_process
from headrace.engine.model_config import SamplingDefaults
from headrace.engine.wire.messages import AddRequest, CoreStatistics, Ready, TokenDelta
from headrace.engine.wire.remote_call import pack_results, unpack_call
from headrace.errors import EngineGenerateError
from headrace.testing.model_shapes import SMALLEST_MODEL

_MODEL = dataclasses.replace(
    SMALLEST_MODEL, model="fake", tokenizer="fake", max_model_len=4096, vocab_size=259, eos_token_ids=(258,)
)


def fake_engine_config(
    *,
    served_model_name: str = "fake",
    max_model_len: int = 4096,
    policy: SchedulingPolicy = "fcfs",
    sampling_defaults: SamplingDefaults = _MODEL.sampling_defaults,
) -> EngineConfig:
    """The configuration of a model with the vocabulary of `ByteTokenizer` and no files."""
    model = dataclasses.replace(
        _MODEL,
        served_model_name=served_model_name,
        max_model_len=max_model_len,
        sampling_defaults=sampling_defaults,
    )
    return EngineConfig(
        model=model,
        cache=CacheConfig(block_size=16, kv_cache_memory_bytes=None, enable_prefix_caching=True),
        scheduler=SchedulerConfig(
            max_num_seqs=64, max_num_batched_tokens=2048, max_model_len=max_model_len, policy=policy
        ),
        execution=ExecutionConfig(device="cpu", dtype="auto", cpu_threads=None, load_format="dummy", seed=0),
    )


Answer = Callable[[tuple[int, ...], int], int]
"""Prompt and position to the token at that position of the answer."""


def echo(prompt: tuple[int, ...], position: int) -> int:
    return prompt[position % len(prompt)]


@dataclass(slots=True)
class _Live:
    request: AddRequest
    prompt: tuple[int, ...]
    token_ids: list[int] = field(default_factory=list)
    has_begun: bool = False


class FakeCore:
    """Steps all requests at once. The methods of a core belong to the core's thread, the others to the test's."""

    def __init__(self, config: EngineConfig | None = None, *, answer: Answer = echo, num_blocks: int = 1024) -> None:
        self.block_size = config.cache.block_size if config is not None else 16
        self.num_blocks = num_blocks
        self.added: list[AddRequest] = []
        self.aborted: list[str] = []
        self.sleep_level = 0
        """It only remembers it, and steps on."""
        self.is_closed = False
        self._answer = answer
        self._live: dict[str, _Live] = {}
        self._num_steps = 0
        self._lock = threading.Lock()
        self._permits: int | None = None
        self._is_released = threading.Event()
        self._is_released.set()
        self._failure: BaseException | None = None

    # -- what the test decides

    def allow_steps(self, num_steps: int | None) -> None:
        """Steps that it may do from now on; None lifts the limit. An idle core notices with its next message."""
        with self._lock:
            self._permits = num_steps

    def hang(self) -> None:
        """The next step does not return until `release`."""
        self._is_released.clear()

    def release(self) -> None:
        self._is_released.set()

    def fail(self, error: BaseException) -> None:
        """The next step raises `error`."""
        self._failure = error

    # -- what the engine calls

    def add_request(self, request: AddRequest) -> None:
        prompt = tuple(np.frombuffer(request.prompt, dtype=np.uint32).tolist())
        if self._blocks(len(prompt)) > self.num_blocks:
            raise EngineGenerateError(f"a prompt of {len(prompt)} tokens does not fit {self.num_blocks} blocks")
        self.added.append(request)
        self._live[request.request_id] = _Live(request, prompt)

    def abort(self, request_ids: Sequence[str]) -> tuple[TokenDelta, ...]:
        found = [request_id for request_id in request_ids if self._live.pop(request_id, None) is not None]
        self.aborted += found
        return tuple(TokenDelta(request_id=name, new_token_ids=(), finish_reason="abort") for name in found)

    def has_work(self) -> bool:
        with self._lock:
            return bool(self._live) and (self._permits is None or self._permits > 0)

    def step(self, *, announce: Callable[[tuple[TokenDelta, ...]], None] | None = None) -> tuple[TokenDelta, ...]:
        self._announce_begun(announce)
        self._is_released.wait()
        if self._failure is not None:
            raise self._failure
        self._num_steps += 1
        with self._lock:
            self._permits = self._permits - 1 if self._permits is not None else None
        return tuple(self._advance(live) for live in list(self._live.values()))

    def _announce_begun(self, announce: Callable[[tuple[TokenDelta, ...]], None] | None) -> None:
        begun = [live for live in self._live.values() if not live.has_begun]
        for live in begun:
            live.has_begun = True
        if announce is not None and begun:
            announce(
                tuple(
                    TokenDelta(request_id=live.request.request_id, new_token_ids=(), is_running=True) for live in begun
                )
            )

    def check(self) -> None:
        """It has no parts that could end."""

    def statistics(self) -> CoreStatistics:
        num_held = sum(self._blocks(len(live.prompt) + len(live.token_ids)) for live in self._live.values())
        return CoreStatistics(
            num_running=len(self._live),
            num_blocks=self.num_blocks,
            num_free_blocks=self.num_blocks - num_held,
            num_steps=self._num_steps,
            sleep_level=self.sleep_level,
        )

    def take_moved(self) -> tuple[TokenDelta, ...]:
        return ()

    @property
    def operations(self) -> "FakeCore":
        return self

    def ready(self, *, load_s: float) -> Ready:
        return Ready(num_blocks=self.num_blocks, block_size=self.block_size, load_s=load_s)

    def close(self) -> None:
        self.is_closed = True

    def reset_prefix_cache(self) -> bool:
        return not self._live

    def sleep(self, level: int) -> None:
        self.sleep_level = level

    def wake_up(self, tags: tuple[str, ...] | None) -> None:
        self.sleep_level = 0 if tags is None or len(tags) == 2 else self.sleep_level

    def is_sleeping(self) -> bool:
        return self.sleep_level > 0

    def collective_rpc(self, packed: bytes) -> bytes:
        """One worker, which is this core."""
        call = unpack_call(packed)
        method = getattr(self, call.method) if isinstance(call.method, str) else partial(call.method, self)
        return pack_results([method(*call.args, **call.kwargs)], name=call.name)

    def check_integrity(self) -> None:
        assert self.statistics().num_free_blocks >= 0, "more blocks are held than there are"

    def _advance(self, live: _Live) -> TokenDelta:
        if live.request.pooling_params is not None:
            return self._embed(live)
        token_id = self._answer(live.prompt, len(live.token_ids))
        live.token_ids.append(token_id)
        reason = self._finish_reason(live, token_id)
        if reason is not None:
            del self._live[live.request.request_id]
        return TokenDelta(
            request_id=live.request.request_id,
            new_token_ids=(token_id,),
            finish_reason=reason,
            stop_reason=token_id if reason == "stop" else None,
        )

    def _embed(self, live: _Live) -> TokenDelta:
        """The vector of a prompt is its token ids."""
        params = live.request.pooling_params
        assert params is not None
        del self._live[live.request.request_id]
        vector = np.array(live.prompt, dtype=np.float32)[: params.dimensions]
        return TokenDelta(
            request_id=live.request.request_id,
            new_token_ids=(),
            finish_reason="stop",
            embedding=vector.tobytes(),
        )

    def _finish_reason(self, live: _Live, token_id: int) -> str | None:
        num_tokens = len(live.token_ids)
        if token_id in live.request.stop_token_ids and num_tokens > live.request.sampling_params.min_tokens:
            return "stop"
        return "length" if num_tokens >= live.request.max_tokens else None

    def _blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)


if __name__ == "__main__":
    sys.exit(run_core_process(int(sys.argv[1]), build_core=FakeCore))
