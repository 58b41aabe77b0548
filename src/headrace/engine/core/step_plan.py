"""What the scheduler tells the executor to do in one step: plain values, so that an executor may live elsewhere.

The runner keeps each request's tokens and block table; a plan names only what changes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from headrace.engine.lora_request import LoRARequest
from headrace.engine.pooling_params import PoolingParams
from headrace.engine.sampling_params import SamplingParams
from headrace.engine.wire.messages import TokenLogprobs, WireError


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmittedRequest:
    """A request that starts to run, for the first time or again after a preemption."""

    request_id: str
    token_ids: tuple[int, ...]
    """The prompt, then what was generated before a preemption."""
    num_prompt_tokens: int
    params: SamplingParams
    stop_token_ids: frozenset[int]
    sampling_seed: int
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Token ids of the texts that the answer must not hold."""
    pooling: PoolingParams | None = None
    """Set for an embedding: pooled instead of sampled."""
    lora: LoRARequest | None = None


class ScheduledRequest(msgspec.Struct, array_like=True, frozen=True, kw_only=True, gc=False):
    """The tokens `start ... start + num_tokens - 1` of one request are computed in this step."""

    request_id: str
    start: int
    num_tokens: int
    new_block_ids: tuple[int, ...]
    """To append to the request's block table before the step."""
    is_sampled: bool
    """Whether the step reaches the request's last token, so that the next one is drawn."""
    num_foretold: int = 0
    """How many of the tokens, the last ones but the one that is drawn from, foretell a token of the prompt whose log
    probability is wanted."""
    grammar_mask: bytes | None = None
    """What may be drawn: one bit for each token id, the lowest of the first byte being id 0. None: any token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """One step. To be applied in this order: released, admitted, scheduled."""

    released: tuple[str, ...]
    """Requests that finished, were aborted or preempted since the last plan."""
    admitted: tuple[AdmittedRequest, ...]
    scheduled: tuple[ScheduledRequest, ...]

    @property
    def num_tokens(self) -> int:
        return sum(request.num_tokens for request in self.scheduled)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The outcome of a plan, by request id. Plain values, as a plan's are."""

    token_ids: Mapping[str, int]
    """The token drawn for each scheduled request with `is_sampled`; pooled requests have none."""
    logprobs: Mapping[str, TokenLogprobs] = field(default_factory=dict)
    """Of the drawn tokens, where wanted."""
    prompt_logprobs: Mapping[str, tuple[TokenLogprobs, ...]] = field(default_factory=dict)
    """Of the prompt tokens that this step's logits foretell, where wanted: those after each computed one."""
    embeddings: Mapping[str, bytes] = field(default_factory=dict)
    """Packed float32 vectors of the pooled requests whose prompt is now computed whole."""
    failures: Mapping[str, WireError] = field(default_factory=dict)
    """Why a scheduled request cannot go on, for instance since its adapter does not load; what else the step did for
    it is void. Other requests are not concerned."""
