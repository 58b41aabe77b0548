"""Which adapters the running requests use, so that a step never needs more of them than the device holds. Pure."""

from collections import Counter

from headrace.engine.lora_request import LoRARequest


class ActiveAdapters:
    """Counts running requests by adapter. A request without an adapter takes no place."""

    def __init__(self, max_loras: int) -> None:
        self._max_loras = max_loras
        self._num_requests: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._num_requests)

    def __repr__(self) -> str:
        return f"ActiveAdapters({len(self)} of {self._max_loras})"

    def has_place_for(self, lora: LoRARequest | None) -> bool:
        """Whether a request with this adapter may start to run."""
        return lora is None or lora.lora_int_id in self._num_requests or len(self._num_requests) < self._max_loras

    def enter(self, lora: LoRARequest | None) -> None:
        """A request with this adapter starts to run."""
        assert self.has_place_for(lora), f"{self!r} has no place for {lora!r}"
        if lora is not None:
            self._num_requests[lora.lora_int_id] += 1

    def leave(self, lora: LoRARequest | None) -> None:
        """A request with this adapter runs no more."""
        if lora is None:
            return
        self._num_requests[lora.lora_int_id] -= 1
        if self._num_requests[lora.lora_int_id] == 0:
            del self._num_requests[lora.lora_int_id]
