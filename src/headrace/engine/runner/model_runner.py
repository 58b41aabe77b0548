"""Runs one step's plan on the model: plan in, drawn tokens out. Knows no queues, no messages and no policy."""

import torch

from headrace.engine.models.decoder import CausalModel
from headrace.engine.runner.paged_cache import PagedKVCache
from headrace.engine.runner.sampler import sample
from headrace.engine.runner.sequence_table import SequenceTable
from headrace.engine.runner.step_inputs import StepRows, build_batch, order_rows
from headrace.engine.sampling_params import SamplingParams
from headrace.engine.step_plan import AdmittedRequest, ScheduledRequest, StepPlan, StepResult

_WARM_UP_ID = "warm-up"


class ModelRunner:
    """One model with its KV cache, in this process. Not thread-safe: one step at a time."""

    def __init__(
        self, model: CausalModel, cache: PagedKVCache, *, max_num_seqs: int, max_model_len: int, dtype: torch.dtype
    ) -> None:
        self._model = model
        self._cache = cache
        self._dtype = dtype
        max_num_blocks = min(cache.num_blocks, -(-max_model_len // cache.block_size))
        self._sequences = SequenceTable(max_num_seqs=max_num_seqs, max_num_blocks=max_num_blocks)

    def __repr__(self) -> str:
        return f"ModelRunner({self._sequences!r}, {self._cache!r})"

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> StepResult:
        """Compute the plan's tokens, and draw the next ones of its requests that are sampled."""
        self._apply(plan)
        if not plan.scheduled:
            return StepResult(token_ids={})
        rows = order_rows(plan.scheduled)
        hidden = self._model.forward(build_batch(rows, self._sequences, self._cache, dtype=self._dtype))
        return self._sample(rows, self._model.logits(hidden))

    def warm_up(self) -> None:
        """A prefill and a decode on block 0, so that the first request finds libraries loaded and buffers made."""
        admitted = AdmittedRequest(
            request_id=_WARM_UP_ID,
            token_ids=(0, 0),
            num_prompt_tokens=2,
            params=SamplingParams(temperature=1.0, top_p=0.9),
            stop_token_ids=frozenset(),
            sampling_seed=0,
        )
        blocks = (0,) * -(-2 // self._cache.block_size)
        prefill = ScheduledRequest(request_id=_WARM_UP_ID, start=0, num_tokens=2, new_block_ids=blocks, is_sampled=True)
        decode = ScheduledRequest(request_id=_WARM_UP_ID, start=1, num_tokens=1, new_block_ids=(), is_sampled=True)
        self.run(StepPlan(released=(), admitted=(admitted,), scheduled=(prefill,)))
        self.run(StepPlan(released=(), admitted=(), scheduled=(decode,)))
        self.run(StepPlan(released=(_WARM_UP_ID,), admitted=(), scheduled=()))

    def _apply(self, plan: StepPlan) -> None:
        for request_id in plan.released:
            self._sequences.release(request_id)
        for admitted in plan.admitted:
            self._sequences.admit(admitted)
        for scheduled in plan.scheduled:
            if scheduled.new_block_ids:
                self._sequences.append_blocks(scheduled)

    def _sample(self, rows: StepRows, logits: torch.Tensor) -> StepResult:
        sampled = rows.sampled
        token_ids = sample(logits.float(), [self._sequences[request.request_id].sampling for request in sampled])
        for request, token_id in zip(sampled, token_ids, strict=True):
            self._sequences.append_token(request.request_id, token_id)
        drawn = {request.request_id: token_id for request, token_id in zip(sampled, token_ids, strict=True)}
        return StepResult(token_ids=drawn)
