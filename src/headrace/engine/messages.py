"""Everything that crosses between the front end's process and the engine core's, as typed messages.

Frames are msgpack with a length prefix (`headrace.engine.channel`); token ids of a prompt travel as packed uint32 in
the machine's byte order. This module knows neither process.
"""

from typing import TypeAlias

import msgspec

from headrace.engine.lora_request import LoRARequest
from headrace.engine.pooling_params import PoolingParams
from headrace.engine.sampling_params import SamplingParams


class Start(msgspec.Struct, tag=True, array_like=True, frozen=True, gc=False):
    """The first frame: build the core from this `EngineConfig` (as JSON) and answer `Ready` or `Failed`."""

    config: bytes


class AddRequest(msgspec.Struct, tag=True, array_like=True, frozen=True, kw_only=True, gc=False):
    """Queue a request. `prompt` is its token ids (packed uint32); `max_tokens` is resolved, never None."""

    request_id: str
    prompt: bytes
    sampling_params: SamplingParams
    max_tokens: int
    stop_token_ids: tuple[int, ...]
    """Ids that end the request, the model's end-of-sequence ids among them unless `ignore_eos`."""
    arrival_time: float
    priority: int = 0
    pooling_params: PoolingParams | None = None
    """Set for an embedding: the request then ends with its prompt, and `sampling_params` has no effect."""
    lora: LoRARequest | None = None


class Abort(msgspec.Struct, tag=True, array_like=True, frozen=True, gc=False):
    """End these requests and free their blocks. Unknown ids are ignored.

    With a `call_id` it is answered by `CallResult` when the blocks are free, after the outputs that say so.
    """

    request_ids: tuple[str, ...]
    call_id: int | None = None


class Call(msgspec.Struct, tag=True, array_like=True, frozen=True, kw_only=True, gc=False):
    """Run a named method of the core between two steps; answered by `CallResult` with the same `call_id`."""

    call_id: int
    method: str
    arguments: tuple[str | int | float | bool | None, ...] = ()


class Shutdown(msgspec.Struct, tag=True, array_like=True, frozen=True, gc=False):
    """End the core's process after the step that runs."""


ToCore: TypeAlias = Start | AddRequest | Abort | Call | Shutdown


class TokenLogprobs(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Log probabilities at one position: the position's own token first, then the most likely ones, likeliest first."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    rank: int
    """Of the position's own token in the whole vocabulary, 1 being the likeliest."""


class TokenDelta(msgspec.Struct, array_like=True, frozen=True, kw_only=True, gc=False):
    """What one step did for one request. `finish_reason` is set on the last delta of a request, and only there."""

    request_id: str
    new_token_ids: tuple[int, ...]
    num_cached_tokens: int = 0
    finish_reason: str | None = None
    stop_reason: int | None = None
    error: str | None = None
    """Why the request failed inside the core; `finish_reason` is then "error"."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each of `new_token_ids`, where the request wants them."""
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """With the first delta, where wanted: one for each prompt token but the first."""
    embedding: bytes | None = None
    """The pooled vector (packed float32, the machine's byte order), with the only delta of an embedding request."""


class CoreStatistics(msgspec.Struct, array_like=True, frozen=True, kw_only=True, gc=False):
    """A snapshot of the core after a step. Counters count from the core's start; tokens unless named otherwise."""

    num_running: int = 0
    num_waiting: int = 0
    num_blocks: int = 0
    num_free_blocks: int = 0
    """Blocks that no request holds; cached ones among them."""
    num_steps: int = 0
    num_preemptions: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0


class Ready(msgspec.Struct, tag=True, array_like=True, frozen=True, kw_only=True, gc=False):
    """The core has loaded its model and takes requests."""

    num_blocks: int
    block_size: int
    load_s: float


class StepOutputs(msgspec.Struct, tag=True, array_like=True, frozen=True, kw_only=True, gc=False):
    """The outcome of one step; also sent, with no deltas, as a sign of life while the core idles."""

    deltas: tuple[TokenDelta, ...]
    statistics: CoreStatistics


class CallResult(msgspec.Struct, tag=True, array_like=True, frozen=True, kw_only=True, gc=False):
    call_id: int
    result: str | int | float | bool | None = None
    error: str | None = None


class Failed(msgspec.Struct, tag=True, array_like=True, frozen=True, kw_only=True, gc=False):
    """The core cannot start or go on; the last message it sends."""

    message: str
    traceback: str = ""


FromCore: TypeAlias = Ready | StepOutputs | CallResult | Failed
