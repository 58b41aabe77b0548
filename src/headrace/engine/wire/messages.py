"""Everything that crosses between the front end's process and the engine core's, as typed messages.

Frames are msgpack with a length prefix (`headrace.engine.wire.channel`); token ids of a prompt travel as packed uint32
in the machine's byte order. This module knows neither process.
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
    bad_words: tuple[tuple[int, ...], ...] = ()
    """`sampling_params.bad_words` as token ids, in every way that they are written."""
    leader_id: str | None = None
    """A request with the same prompt, added before: this one waits until its prompt is computed, and in the cache."""
    cache_salt: str | None = None
    """Sets the request's blocks apart: only requests with the same salt share them."""


class Abort(msgspec.Struct, tag=True, array_like=True, frozen=True, gc=False):
    """End these requests and free their blocks. Unknown ids are ignored.

    With a `call_id` it is answered by `CallResult` when the blocks are free, after the outputs that say so.
    """

    request_ids: tuple[str, ...]
    call_id: int | None = None


class Call(msgspec.Struct, tag=True, array_like=True, frozen=True, kw_only=True, gc=False):
    """Run a named method of the core between two steps; answered by `CallResult` with the same `call_id`.

    `headrace.engine.core.calls` lists the methods and the types of their arguments.
    """

    call_id: int
    method: str
    arguments: tuple[object, ...] = ()
    """Whatever msgpack can say."""


class Shutdown(msgspec.Struct, tag=True, array_like=True, frozen=True, gc=False):
    """End the core's process after the step that runs."""


ToCore: TypeAlias = Start | AddRequest | Abort | Call | Shutdown


class TokenLogprobs(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Log probabilities at one position: the position's own token first, then the most likely ones, likeliest first."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    rank: int
    """Of the position's own token in the whole vocabulary, 1 being the likeliest."""


class WireError(msgspec.Struct, array_like=True, frozen=True, kw_only=True, gc=False):
    """An exception of `headrace.errors` on its way to the front end, which raises it there."""

    kind: str
    """The name of its class."""
    message: str
    param: str | None = None


class TokenDelta(msgspec.Struct, array_like=True, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """What one step did for one request. `finish_reason` is set on the last delta of a request, and only there."""

    request_id: str
    new_token_ids: tuple[int, ...]
    num_cached_tokens: int = 0
    finish_reason: str | None = None
    stop_reason: int | None = None
    error: str | None = None
    """Why the request failed inside the core; `finish_reason` is then "error"."""
    error_kind: str = "EngineGenerateError"
    """The class in `headrace.errors` of that failure."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each of `new_token_ids`, where the request wants them."""
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """With the first delta, where wanted: one for each prompt token but the first."""
    embedding: bytes | None = None
    """The pooled vector (packed float32, the machine's byte order), with the only delta of an embedding request."""
    queue_s: float | None = None
    """With the first delta of a request that ran: seconds from its arrival in the core to its first step."""
    prefill_s: float | None = None
    """With the first delta of a request that ran: seconds from its first step to its first token."""
    num_preemptions: int = 0
    """Times that the request lost its blocks so far."""
    is_running: bool | None = None
    """Set by itself, ahead of a step: the request begins to run in it, or was put back to wait."""
    error_param: str | None = None
    """The field of the request that the failure is about, where it is about one."""


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
    num_step_tokens: int = 0
    """Tokens that the step before this snapshot computed; 0 where none ran."""
    num_waiting_deferred: int = 0
    """Of `num_waiting`, those that wait for something else than room: for the engine to wake up, for instance."""
    num_cached_blocks: int = 0
    """Blocks that keep a prefix for later requests, held or free."""
    num_refused: int = 0
    """Requests that were refused because too many waited."""
    sleep_level: int = 0
    """0 when awake."""
    num_kv_event_batches: int = 0
    num_kv_event_batches_unsent: int = 0
    """Of them, those that only a replay can bring, because the publisher was behind."""


class Ready(msgspec.Struct, tag=True, array_like=True, frozen=True, kw_only=True, gc=False):
    """The core has loaded its model and takes requests."""

    num_blocks: int
    block_size: int
    load_s: float
    kv_events_endpoint: str | None = None
    """Where KV events are published, with the port that the system chose; None where they are not."""
    kv_events_replay_endpoint: str | None = None


class StepOutputs(msgspec.Struct, tag=True, array_like=True, frozen=True, kw_only=True, gc=False):
    """The outcome of one step; also sent, with no deltas, as a sign of life while the core idles."""

    deltas: tuple[TokenDelta, ...]
    statistics: CoreStatistics


class CallResult(msgspec.Struct, tag=True, array_like=True, frozen=True, kw_only=True, gc=False):
    """What a call returned, as msgpack says it (a tuple or set is a list), or the error that it raised."""

    call_id: int
    result: object = None
    error: WireError | None = None


class Failed(msgspec.Struct, tag=True, array_like=True, frozen=True, kw_only=True, gc=False):
    """The core cannot start or go on; the last message it sends."""

    message: str
    traceback: str = ""


FromCore: TypeAlias = Ready | StepOutputs | CallResult | Failed
