"""The runner's own copy of every running request: its tokens, its block table and how it is sampled.

Block tables are rows of one array, so that a step's addresses are computed for all sequences at once.
"""

from dataclasses import dataclass

import numpy as np

from headrace.engine.core.step_plan import AdmittedRequest, ScheduledRequest
from headrace.engine.runner.logit_rules import SequenceSampling
from headrace.engine.runner.paged_cache import IntArray


@dataclass(slots=True, kw_only=True)
class RunningSequence:
    """`row` is its place in the table; `token_ids` are those known at admission, `last_token_id` is the newest."""

    row: int
    token_ids: IntArray
    last_token_id: int
    num_blocks: int
    sampling: SequenceSampling

    def token(self, position: int) -> int:
        """One token; of those generated since admission only the newest is ever asked for."""
        return int(self.token_ids[position]) if position < len(self.token_ids) else self.last_token_id

    def span(self, start: int, num_tokens: int) -> IntArray:
        """Several tokens, which were all known at admission."""
        return self.token_ids[start : start + num_tokens]


class SequenceTable:
    """At most `max_num_seqs` sequences of at most `max_num_blocks` blocks."""

    def __init__(self, *, max_num_seqs: int, max_num_blocks: int) -> None:
        self.blocks: IntArray = np.zeros((max_num_seqs, max_num_blocks), dtype=np.int64)
        self._free_rows = list(range(max_num_seqs - 1, -1, -1))
        self._sequences: dict[str, RunningSequence] = {}

    def __len__(self) -> int:
        return len(self._sequences)

    def __repr__(self) -> str:
        return f"SequenceTable({len(self)} of {len(self.blocks)} rows)"

    def __getitem__(self, request_id: str) -> RunningSequence:
        return self._sequences[request_id]

    def admit(self, request: AdmittedRequest) -> None:
        self._sequences[request.request_id] = RunningSequence(
            row=self._free_rows.pop(),
            token_ids=np.array(request.token_ids, dtype=np.int64),
            last_token_id=request.token_ids[-1],
            num_blocks=0,
            sampling=SequenceSampling(
                params=request.params,
                seed=request.sampling_seed,
                stop_token_ids=request.stop_token_ids,
                prompt_token_ids=request.token_ids[: request.num_prompt_tokens],
                output_token_ids=list(request.token_ids[request.num_prompt_tokens :]),
                bad_words=request.bad_words,
            ),
        )

    def release(self, request_id: str) -> None:
        self._free_rows.append(self._sequences.pop(request_id).row)

    def append_blocks(self, scheduled: ScheduledRequest) -> None:
        sequence = self._sequences[scheduled.request_id]
        end = sequence.num_blocks + len(scheduled.new_block_ids)
        self.blocks[sequence.row, sequence.num_blocks : end] = scheduled.new_block_ids
        sequence.num_blocks = end

    def append_token(self, request_id: str, token_id: int) -> None:
        sequence = self._sequences[request_id]
        sequence.last_token_id = token_id
        sequence.sampling.append(token_id)
