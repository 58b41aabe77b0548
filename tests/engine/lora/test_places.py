"""Which adapters stay in host memory and in slots."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.engine.lora.places import AdapterPlaces, Dropped
from headrace.errors import OverloadedError


def filled(*adapter_ids: int, max_host: int = 3, num_slots: int = 2) -> AdapterPlaces:
    places = AdapterPlaces(max_host=max_host, num_slots=num_slots)
    for adapter_id in adapter_ids:
        places.add(adapter_id)
    return places


def test_the_one_used_longest_ago_is_dropped() -> None:
    places = filled(1, 2, 3)
    places.use(1)
    assert places.add(4) == Dropped(2, None)
    assert places.listed() == [1, 3, 4]


def test_a_dropped_adapter_frees_its_slot() -> None:
    places = filled(1, 2, 3)
    slot, is_new = places.hold(1)
    assert is_new
    assert places.let_go(1) is None
    places.use(2)
    places.use(3)
    assert places.add(4) == Dropped(1, slot)


def test_a_pinned_or_held_adapter_is_not_dropped() -> None:
    places = filled(1, 2, 3)
    places.pin(1)
    places.hold(2)
    assert places.add(4) == Dropped(3, None)


def test_with_all_held_or_pinned_there_is_no_place() -> None:
    places = filled(1, 2, 3)
    places.pin(1)
    places.hold(2)
    places.hold(3)
    with pytest.raises(OverloadedError, match="max_cpu_loras"):
        places.add(4)
    assert places.listed() == [1, 2, 3]


def test_pins_leave_a_place_for_each_slot() -> None:
    places = filled(1, 2, 3)
    places.pin(1)
    places.pin(1)
    with pytest.raises(OverloadedError, match="raise max_cpu_loras"):
        places.pin(2)


def test_a_held_adapter_is_removed_with_its_last_holder() -> None:
    places = filled(1)
    slot, _ = places.hold(1)
    places.hold(1)
    assert places.remove(1) is None
    assert places.listed() == []
    assert places.let_go(1) is None
    assert places.let_go(1) == Dropped(1, slot)
    assert 1 not in places


def test_use_takes_a_removal_back() -> None:
    places = filled(1)
    places.hold(1)
    places.remove(1)
    places.use(1)
    assert places.let_go(1) is None
    assert places.listed() == [1]


def test_a_slot_is_taken_from_the_one_used_longest_ago() -> None:
    places = filled(1, 2, 3)
    slots = {adapter_id: places.hold(adapter_id)[0] for adapter_id in (1, 2)}
    places.let_go(1)
    places.let_go(2)
    assert places.hold(3) == (slots[1], True)
    assert places.hold(2) == (slots[2], False)


class AnyUse(RuleBasedStateMachine):
    """Requests come and go with adapters, never more than there are slots at once; operators add, pin and remove."""

    def __init__(self) -> None:
        super().__init__()
        self.places = AdapterPlaces(max_host=5, num_slots=2)
        self.holders: list[int] = []
        self.slot_of: dict[int, int] = {}

    @rule(adapter_id=st.integers(1, 8))
    def admit(self, adapter_id: int) -> None:
        if len({*self.holders, adapter_id}) > 2:
            return
        if adapter_id not in self.places:
            self.places.add(adapter_id)  # there is always a place for a running request's adapter
        slot, is_new = self.places.hold(adapter_id)
        if adapter_id in self.holders:
            assert (slot, is_new) == (self.slot_of[adapter_id], False)
        self.holders.append(adapter_id)
        self.slot_of[adapter_id] = slot

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        adapter_id = data.draw(st.sampled_from(self.holders))
        self.holders.remove(adapter_id)
        self.places.let_go(adapter_id)

    @rule(adapter_id=st.integers(1, 8), what=st.sampled_from(["add", "pin", "remove"]))
    def operate(self, adapter_id: int, what: str) -> None:
        is_listed = adapter_id in self.places.listed()
        try:
            if what == "add" and adapter_id not in self.places:
                self.places.add(adapter_id)
            elif what == "pin" and is_listed:
                self.places.pin(adapter_id)
            elif what == "remove" and is_listed:
                self.places.remove(adapter_id)
        except OverloadedError:
            return

    @invariant()
    def the_rules_hold(self) -> None:
        self.places.check_integrity()
        held_slots = {self.slot_of[adapter_id] for adapter_id in self.holders}
        assert len(held_slots) == len(set(self.holders)), "two adapters in use share a slot"


AnyUse.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
test_any_use_keeps_the_rules = AnyUse.TestCase
