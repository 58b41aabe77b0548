"""What the scheduler tells the executor to do in one step: plain values, so that an executor may live elsewhere.

The runner keeps each request's tokens and block table; a plan names only what changes.
"""

from dataclasses import dataclass

from headrace.engine.sampling_params import SamplingParams


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledRequest:
    """The tokens `start ... start + num_tokens - 1` of one request are computed in this step."""

    request_id: str
    start: int
    num_tokens: int
    new_block_ids: tuple[int, ...]
    """To append to the request's block table before the step."""
    is_sampled: bool
    """Whether the step reaches the request's last token, so that the next one is drawn."""


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
