"""The adapters of one worker: loads them on first use, gives running requests their slots, tells the layers each step.

An adapter's identity is its `lora_int_id`; the name is for people and the path says where its files are.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from headrace.engine.config import LoRAConfig
from headrace.engine.lora.adapted_layers import AdaptedLayers, Rows, SlotRows
from headrace.engine.lora.adapter import LowRank, read_adapter
from headrace.engine.lora.places import AdapterPlaces, Dropped
from headrace.engine.lora_request import LoRARequest
from headrace.engine.models.build import Parallel
from headrace.errors import HeadraceError, InvalidRequestError


@dataclass(frozen=True, slots=True)
class _Loaded:
    lora: LoRARequest
    layers: dict[str, LowRank]


class WorkerAdapters:
    """All methods block; loading reads files. Not thread-safe, as the runner that it belongs to."""

    def __init__(
        self,
        config: LoRAConfig,
        layers: AdaptedLayers,
        *,
        device: torch.device,
        dtype: torch.dtype,
        parallel: Parallel | None = None,
    ) -> None:
        """Workers that share the model (`parallel`) load an adapter all or none: they wait for each other."""
        self._parallel = parallel
        self._max_rank = config.max_lora_rank
        self._layers = layers
        self._device = device
        self._dtype = dtype
        self._places = AdapterPlaces(max_host=config.max_cpu_loras, num_slots=config.max_loras)
        self._loaded: dict[int, _Loaded] = {}
        self._held: dict[str, tuple[int, int]] = {}
        """Adapter id and slot of each running request that has one."""

    def __repr__(self) -> str:
        return f"WorkerAdapters({self._places!r}, {len(self._held)} requests)"

    def add(self, lora: LoRARequest) -> bool:
        """Load it into host memory. False if it was there. Raises InvalidRequestError if it cannot be used."""
        is_new, error = False, None
        try:
            is_new = self._load(lora)
        except HeadraceError as caught:
            error = caught
        if self._fails_anywhere(error):
            if is_new:
                self._forget(self._places.remove(lora.lora_int_id))
            message = f"the LoRA adapter {lora.lora_name!r} from {lora.lora_path} does not load on every worker"
            raise error or InvalidRequestError(message, param="lora_path")
        return is_new

    def _load(self, lora: LoRARequest) -> bool:
        known = self._loaded.get(lora.lora_int_id)
        if known is not None:
            _check_same(known.lora, lora)
            self._places.use(lora.lora_int_id)
            return False
        layers = read_adapter(
            Path(lora.lora_path), layers=self._layers.sizes, max_rank=self._max_rank, dtype=self._dtype
        )
        self._forget(self._places.add(lora.lora_int_id))
        self._loaded[lora.lora_int_id] = _Loaded(lora, layers)
        return True

    def remove(self, lora_int_id: int) -> bool:
        """Forget it; running requests finish with it first. False if it is not loaded."""
        if lora_int_id not in self._places.listed():
            return False
        self._forget(self._places.remove(lora_int_id))
        return True

    def pin(self, lora_int_id: int) -> bool:
        """Keep it in host memory until it is removed. False if it is not loaded; raises OverloadedError."""
        if lora_int_id not in self._places.listed():
            return False
        self._places.pin(lora_int_id)
        return True

    def listed(self) -> list[int]:
        """Ids of the loaded adapters, in order."""
        return self._places.listed()

    def admit(self, request_id: str, lora: LoRARequest) -> None:
        """A request begins to run with it. Raises InvalidRequestError, holding nothing, if that cannot be."""
        self.add(lora)
        slot, is_new = self._places.hold(lora.lora_int_id)
        if is_new:
            self._layers.fill(slot, self._loaded[lora.lora_int_id].layers)
        self._held[request_id] = (lora.lora_int_id, slot)

    def release(self, request_id: str) -> None:
        """The request runs no more. One without an adapter is passed over."""
        held = self._held.pop(request_id, None)
        if held is not None:
            self._forget(self._places.let_go(held[0]))

    def move_to(self, layers: AdaptedLayers) -> None:
        """The model was loaded again, while no request runs: these are its layers, and every slot of them is empty."""
        self._layers = layers
        self._places.vacate()

    def begin_step(self, rows: Sequence[tuple[str, int]]) -> None:
        """The next step computes these requests, in this order, with so many rows each."""
        self._layers.begin_step(self._groups(rows) if self._held else ())

    def check_integrity(self) -> None:
        self._places.check_integrity()
        assert all(adapter_id in self._places for adapter_id in self._loaded)

    def _fails_anywhere(self, error: HeadraceError | None) -> bool:
        if self._parallel is None:
            return error is not None
        return self._parallel.least(int(error is None)) == 0

    def _groups(self, rows: Sequence[tuple[str, int]]) -> list[SlotRows]:
        of_slot: dict[int, list[range]] = {}
        start = 0
        for request_id, num_rows in rows:
            if request_id in self._held:
                of_slot.setdefault(self._held[request_id][1], []).append(range(start, start + num_rows))
            start += num_rows
        return [SlotRows(slot=slot, rows=self._join(spans)) for slot, spans in of_slot.items()]

    def _join(self, spans: Sequence[range]) -> Rows:
        if all(one.stop == other.start for one, other in itertools.pairwise(spans)):
            return slice(spans[0].start, spans[-1].stop)
        return torch.from_numpy(np.concatenate([np.array(span, dtype=np.int64) for span in spans])).to(self._device)

    def _forget(self, dropped: Dropped | None) -> None:
        if dropped is None:
            return
        del self._loaded[dropped.adapter_id]
        if dropped.slot is not None:
            self._layers.empty(dropped.slot)


def _check_same(known: LoRARequest, lora: LoRARequest) -> None:
    if known.lora_path != lora.lora_path:
        message = (
            f"lora_int_id {lora.lora_int_id} is the adapter {known.lora_name!r} from {known.lora_path}, not one from "
            f"{lora.lora_path}; remove it first, or use another id"
        )
        raise InvalidRequestError(message, param="lora_int_id")
