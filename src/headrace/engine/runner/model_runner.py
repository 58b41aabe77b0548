"""Runs one step's plan on the model: plan in, drawn tokens out. Knows no queues, no messages and no policy."""

from collections.abc import Mapping

import torch

from headrace.engine.core.step_plan import AdmittedRequest, ScheduledRequest, StepPlan, StepResult
from headrace.engine.kernels.paged_attention import KernelKVCache
from headrace.engine.lora.worker_adapters import WorkerAdapters
from headrace.engine.models.decoder import CausalModel
from headrace.engine.runner.drawing import draw
from headrace.engine.runner.paged_cache import PagedKVCache
from headrace.engine.runner.pooling import Pooler
from headrace.engine.runner.sequence_table import SequenceTable
from headrace.engine.runner.static_decode import Record, StaticDecoder
from headrace.engine.runner.step_inputs import StepRows, build_batch, decode_inputs, order_rows, sampled_row
from headrace.engine.sampling_params import SamplingParams
from headrace.engine.wire.errors import to_wire
from headrace.engine.wire.messages import WireError
from headrace.errors import HeadraceError

_WARM_UP_ID = "warm-up"


class ModelRunner:
    """One model with its KV cache, in this process. Not thread-safe: one step at a time."""

    def __init__(
        self,
        model: CausalModel,
        cache: PagedKVCache | KernelKVCache,
        *,
        max_num_seqs: int,
        max_model_len: int,
        dtype: torch.dtype,
        adapters: WorkerAdapters | None = None,
        record: Record | None = None,
    ) -> None:
        """With `record`, decode steps are recorded and replayed; not where adapters may change the layers."""
        self._model = model
        self._cache = cache
        self._dtype = dtype
        self._adapters = adapters
        self._pooler = Pooler()
        max_num_blocks = min(cache.num_blocks, -(-max_model_len // cache.block_size))
        self._sequences = SequenceTable(max_num_seqs=max_num_seqs, max_num_blocks=max_num_blocks)
        self._static: StaticDecoder | None = None
        if record is not None and adapters is None and isinstance(cache, PagedKVCache):
            self._static = StaticDecoder(model, cache, max_num_blocks=max_num_blocks, dtype=dtype, record=record)

    def __repr__(self) -> str:
        return f"ModelRunner({self._sequences!r}, {self._cache!r})"

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> StepResult:
        """Compute the plan's tokens, and draw the next ones of its requests that are sampled."""
        failures = self._apply(plan)
        if not plan.scheduled:
            return StepResult(token_ids={})
        rows = order_rows(plan.scheduled)
        hidden = self._compute(rows)
        embeddings: dict[str, bytes] = {}
        if self._pooler:
            embeddings, hidden = self._pooler.take(rows.all, hidden)
        answering = [r for r in rows.all if r.request_id not in self._pooler] if self._pooler else rows.all
        drawn = draw(answering, hidden, self._sequences, logits_of=self._model.logits)
        return StepResult(
            token_ids=drawn.token_ids,
            logprobs=drawn.logprobs,
            prompt_logprobs=drawn.prompt_logprobs,
            embeddings=embeddings,
            failures={**failures, **drawn.failures},
        )

    @torch.inference_mode()
    def follow(self, plan: StepPlan, drawn: Mapping[str, int]) -> None:
        """Compute the plan's tokens where another worker draws; `drawn` are those that it drew for the plan before."""
        for request_id, token_id in drawn.items():
            self._sequences.append_token(request_id, token_id)
        self._apply(plan)
        if plan.scheduled:
            self._compute(order_rows(plan.scheduled))

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

    def _compute(self, rows: StepRows) -> torch.Tensor:
        """Keys and values of all rows stored; the hidden states of those that are wanted."""
        if self._static is not None and not self._pooler and rows.are_plain_decodes:
            return self._static.forward(*decode_inputs(rows, self._sequences))
        wanted_rows = self._pooler.wanted_rows if self._pooler else sampled_row
        batch = build_batch(rows, self._sequences, self._cache, dtype=self._dtype, wanted_rows=wanted_rows)
        if self._adapters is not None:
            self._adapters.begin_step([(request.request_id, request.num_tokens) for request in rows.all])
        return self._model.forward(batch)

    def _apply(self, plan: StepPlan) -> dict[str, WireError]:
        """Bring tables up to date. Why admitted requests fail: they are computed without their adapter, in vain."""
        for request_id in plan.released:
            self._sequences.release(request_id)
            self._pooler.release(request_id)
            if self._adapters is not None:
                self._adapters.release(request_id)
        failures: dict[str, WireError] = {}
        for admitted in plan.admitted:
            self._sequences.admit(admitted)
            self._pooler.admit(admitted)
            if (error := self._adapt(admitted)) is not None:
                failures[admitted.request_id] = error
        for scheduled in plan.scheduled:
            if scheduled.new_block_ids:
                self._sequences.append_blocks(scheduled)
        return failures

    def _adapt(self, admitted: AdmittedRequest) -> WireError | None:
        """Give the request its adapter; the reason, if that cannot be."""
        if admitted.lora is None:
            return None
        assert self._adapters is not None, "the scheduler refuses adapters where they are off"
        try:
            self._adapters.admit(admitted.request_id, admitted.lora)
        except HeadraceError as error:
            return to_wire(error)
        return None
