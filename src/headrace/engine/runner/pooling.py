"""Turns hidden states into one vector per embedding request, over as many steps as its prompt takes.

Vectors are pooled, cut and normalized in float32, whatever the model computes in.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from headrace.engine.core.step_plan import AdmittedRequest, ScheduledRequest
from headrace.engine.pooling_params import PoolingParams
from headrace.engine.runner.step_inputs import sampled_row


@dataclass(slots=True)
class _Pooled:
    """One request on its way: the sum of the hidden states seen so far, where it needs more than one of them."""

    params: PoolingParams
    sum: Tensor | None = None


class Pooler:
    """The embedding requests among the running ones. A request preempted and admitted again begins anew."""

    def __init__(self) -> None:
        self._pooled: dict[str, _Pooled] = {}

    def __len__(self) -> int:
        return len(self._pooled)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._pooled

    def __repr__(self) -> str:
        return f"Pooler({len(self)} requests)"

    def admit(self, request: AdmittedRequest) -> None:
        """A request that is not to be pooled is passed over."""
        if request.pooling is not None:
            self._pooled[request.request_id] = _Pooled(request.pooling)

    def release(self, request_id: str) -> None:
        self._pooled.pop(request_id, None)

    def wanted_rows(self, request: ScheduledRequest) -> range:
        """Which of the request's tokens in this step need their hidden state, counted from the step's first."""
        pooled = self._pooled.get(request.request_id)
        if pooled is None or pooled.params.pooling_type == "last":
            return sampled_row(request)
        if pooled.params.pooling_type == "mean":
            return range(request.num_tokens)
        return range(1 if request.start == 0 else 0)

    def take(self, requests: Sequence[ScheduledRequest], hidden: Tensor) -> tuple[dict[str, bytes], Tensor]:
        """`hidden` [S, hidden] holds the wanted rows of these requests, in order. Vectors of those that are complete,
        packed float32, and the rows that are left: one for each other request that is sampled."""
        embeddings = {}
        left: list[int] = []
        start = 0
        for request in requests:
            end = start + len(self.wanted_rows(request))
            pooled = self._pooled.get(request.request_id)
            if pooled is None:
                left += range(start, end)
            else:
                _add(pooled, hidden[start:end])
                if request.is_sampled:
                    embeddings[request.request_id] = _vector(pooled, num_tokens=request.start + request.num_tokens)
            start = end
        return embeddings, hidden[torch.tensor(left, dtype=torch.int64, device=hidden.device)]


def _add(pooled: _Pooled, rows: Tensor) -> None:
    if len(rows) == 0:
        return
    total = rows.float().sum(dim=0)
    pooled.sum = total if pooled.sum is None else pooled.sum + total


def _vector(pooled: _Pooled, *, num_tokens: int) -> bytes:
    assert pooled.sum is not None, "a request is complete only after its wanted rows were computed"
    params = pooled.params
    vector = pooled.sum / num_tokens if params.pooling_type == "mean" else pooled.sum
    vector = vector[: params.dimensions]
    if params.normalize:
        vector = functional.normalize(vector, dim=0)
    packed: bytes = vector.cpu().numpy().tobytes()
    return packed
