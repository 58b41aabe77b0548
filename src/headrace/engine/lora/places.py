"""Which adapters are kept in host memory and which of them sit in a device slot. Pure; knows no tensors.

Rules:
1. At most `max_host` adapters are kept, at most `num_slots` of them in slots.
2. One that a running request holds is neither dropped nor moved out of its slot.
3. A pinned one is not dropped. As many may be pinned as leave `num_slots` places in host memory to the others.
4. What goes first is what was used longest ago; of two in slots, one that is not pinned.
So there is always a place for one more adapter of a running request, if these use no more than `num_slots`.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.errors import OverloadedError


@dataclass(frozen=True, slots=True)
class Dropped:
    """An adapter that is not kept any more, and the slot that it sat in: both are to be emptied."""

    adapter_id: int
    slot: int | None


@dataclass(slots=True)
class _Place:
    slot: int | None = None
    num_holders: int = 0
    is_pinned: bool = False
    is_leaving: bool = False
    """Removed, but held: it goes with its last holder."""


class AdapterPlaces:
    """Adapters by their int ids; a changed order of use is all that looking does."""

    def __init__(self, *, max_host: int, num_slots: int) -> None:
        assert 1 <= num_slots <= max_host
        self._max_host = max_host
        self._num_slots = num_slots
        self._free_slots = list(range(num_slots - 1, -1, -1))
        self._places: dict[int, _Place] = {}  # the order is that of use, longest ago first

    def __repr__(self) -> str:
        in_slots = self._num_slots - len(self._free_slots)
        return f"AdapterPlaces({len(self._places)}/{self._max_host} on the host, {in_slots}/{self._num_slots} in slots)"

    def __contains__(self, adapter_id: int) -> bool:
        return adapter_id in self._places

    def listed(self) -> list[int]:
        """Ids of all adapters that are kept and were not removed, in order."""
        return sorted(adapter_id for adapter_id, place in self._places.items() if not place.is_leaving)

    def add(self, adapter_id: int) -> Dropped | None:
        """Make place for a new adapter; what was dropped for it. Raises OverloadedError if all are held or pinned."""
        assert adapter_id not in self._places
        dropped = None
        if len(self._places) >= self._max_host:
            loser = self._first_to_go(self._places)
            if loser is None:
                message = (
                    f"no place for another LoRA adapter: all {self._max_host} (max_cpu_loras) are in use or pinned; "
                    "remove one or raise max_cpu_loras"
                )
                raise OverloadedError(message)
            dropped = self._drop(loser)
        self._places[adapter_id] = _Place()
        return dropped

    def use(self, adapter_id: int) -> None:
        """Note that it was asked for, which also takes a removal back."""
        place = self._places.pop(adapter_id)
        place.is_leaving = False
        self._places[adapter_id] = place

    def hold(self, adapter_id: int) -> tuple[int, bool]:
        """A running request uses it: its slot, and whether it comes into that slot only now."""
        self.use(adapter_id)
        place = self._places[adapter_id]
        place.num_holders += 1
        is_new = place.slot is None
        if place.slot is None:
            place.slot = self._take_slot()
        return place.slot, is_new

    def let_go(self, adapter_id: int) -> Dropped | None:
        """A running request uses it no more. What is dropped: it, if it was removed and this was its last holder."""
        place = self._places[adapter_id]
        place.num_holders -= 1
        assert place.num_holders >= 0
        return self._drop(adapter_id) if place.is_leaving and place.num_holders == 0 else None

    def remove(self, adapter_id: int) -> Dropped | None:
        """Drop it now, or have its last holder do so."""
        place = self._places[adapter_id]
        if place.num_holders > 0:
            place.is_leaving = True
            place.is_pinned = False
            return None
        return self._drop(adapter_id)

    def vacate(self) -> None:
        """All slots are empty from now on; the host keeps what it has. Nothing may be held."""
        assert all(place.num_holders == 0 for place in self._places.values())
        for place in self._places.values():
            place.slot = None
        self._free_slots = list(range(self._num_slots - 1, -1, -1))

    def pin(self, adapter_id: int) -> None:
        """Keep it until it is removed. Raises OverloadedError if that left too few places to the others."""
        place = self._places[adapter_id]
        num_pinned = sum(other.is_pinned for other in self._places.values())
        if not place.is_pinned and num_pinned + self._num_slots >= self._max_host:
            message = (
                f"cannot pin another LoRA adapter: {num_pinned} are pinned, max_loras={self._num_slots} places must "
                f"stay for others and max_cpu_loras is {self._max_host}; raise max_cpu_loras"
            )
            raise OverloadedError(message)
        self.use(adapter_id)
        place.is_pinned = True

    def check_integrity(self) -> None:
        """Assert the rules at the top of this module."""
        slots = [place.slot for place in self._places.values() if place.slot is not None]
        assert sorted([*slots, *self._free_slots]) == list(range(self._num_slots)), "slots do not add up"
        assert len(self._places) <= self._max_host
        assert all(place.slot is not None for place in self._places.values() if place.num_holders > 0)
        assert all(place.num_holders > 0 for place in self._places.values() if place.is_leaving)
        assert sum(place.is_pinned for place in self._places.values()) <= self._max_host - self._num_slots

    def _take_slot(self) -> int:
        if self._free_slots:
            return self._free_slots.pop()
        in_slots = [adapter_id for adapter_id, place in self._places.items() if place.slot is not None]
        loser = self._first_to_go(in_slots)
        if loser is None:
            loser = next(adapter_id for adapter_id in in_slots if self._places[adapter_id].num_holders == 0)
        place = self._places[loser]
        assert place.slot is not None
        slot, place.slot = place.slot, None
        return slot

    def _first_to_go(self, adapter_ids: Iterable[int]) -> int | None:
        for adapter_id in adapter_ids:
            place = self._places[adapter_id]
            if place.num_holders == 0 and not place.is_pinned:
                return adapter_id
        return None

    def _drop(self, adapter_id: int) -> Dropped:
        slot = self._places.pop(adapter_id).slot
        if slot is not None:
            self._free_slots.append(slot)
        return Dropped(adapter_id, slot)
