"""How many workers share a model and how many cores share the requests, and which part of the model each worker holds.

Pure: it says what a worker holds, not how it gets it. No torch.
"""

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from headrace.engine.model_config import ModelConfig
from headrace.errors import SettingsError

ExecutorBackend: TypeAlias = Literal["auto", "local", "process", "ray"]
ExecutorKind: TypeAlias = Literal["local", "process", "ray"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelConfig:
    """Workers and cores, and what starts them; see `EngineArgs`."""

    tensor_parallel_size: int = 1
    """Workers of one core; each holds a part of every layer."""
    data_parallel_size: int = 1
    """Cores behind one front end; each holds the whole model and a KV cache of its own."""
    data_parallel_rank: int = 0
    """Which of the cores this config is for."""
    executor: ExecutorKind = "local"
    """What runs the workers: the core's own process, child processes, or Ray actors."""
    engine_use_ray: bool = False
    """Each core is a Ray actor instead of a child process."""
    ray_address: str | None = None
    worker_timeout_s: float = 60.0

    @property
    def num_workers(self) -> int:
        """Of all cores together."""
        return self.tensor_parallel_size * self.data_parallel_size


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShare:
    """What one worker holds of each layer, as ranges among the whole model's heads and MLP channels.

    Query heads stay with the key-value head they attend to. Norms, embeddings and the head that makes logits are whole
    on every worker: so the logits are computed as one worker computes them, from hidden states that are added up.
    """

    heads: range
    kv_heads: range
    channels: range


def layer_share(model: ModelConfig, *, rank: int, size: int) -> LayerShare:
    """The share of worker `rank` of `size`. Raises SettingsError if the model cannot be shared by so many."""
    heads, kv_heads = _head_shares(model, size=size)
    return LayerShare(heads=heads[rank], kv_heads=kv_heads[rank], channels=_cut(model.intermediate_size, rank, size))


def check_layer_shares(model: ModelConfig, *, size: int) -> None:
    """Raises SettingsError if the model cannot be shared by `size` workers."""
    _head_shares(model, size=size)


def share_of_model(model: ModelConfig, share: LayerShare) -> ModelConfig:
    """The model as one worker's KV cache sees it: with the heads that the worker holds."""
    return replace(model, num_heads=len(share.heads), num_kv_heads=len(share.kv_heads))


def _head_shares(model: ModelConfig, *, size: int) -> tuple[list[range], list[range]]:
    """Key-value heads are dealt out as evenly as they go, or, where there are fewer than workers, held by several."""
    num_kv_heads, group = model.num_kv_heads, model.num_heads // model.num_kv_heads
    if num_kv_heads >= size:
        kv_heads = [_cut(num_kv_heads, rank, size) for rank in range(size)]
        return [range(r.start * group, r.stop * group) for r in kv_heads], kv_heads
    copies = size // num_kv_heads
    if copies * num_kv_heads != size or group % copies:
        message = (
            f"tensor_parallel_size is {size}, but the model's {model.num_heads} query heads over {num_kv_heads} "
            f"key-value heads cannot be shared by so many; use at most {num_kv_heads}, or a multiple of it up to "
            f"{model.num_heads}"
        )
        raise SettingsError(message, param="tensor_parallel_size")
    per_worker = group // copies
    heads = [range(rank * per_worker, (rank + 1) * per_worker) for rank in range(size)]
    return heads, [range(rank // copies, rank // copies + 1) for rank in range(size)]


def _cut(whole: int, rank: int, size: int) -> range:
    return range(whole * rank // size, whole * (rank + 1) // size)
