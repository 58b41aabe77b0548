from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.gateway.admission.priority import PRIORITIES, PriorityClass
from headrace.gateway.admission.queue import FairQueue


def queue(*, max_waiting: int = 1000) -> FairQueue[str]:
    return FairQueue(max_waiting=max_waiting, ageing_s=10.0)


def push(
    line: FairQueue[str],
    item: str,
    *,
    priority: PriorityClass = "normal",
    key: str = "k",
    weight: int = 1,
    cost: int = 1,
    now: float = 0.0,
):
    return line.push(item, priority=priority, key=key, weight=weight, cost=cost, now=now)


def drain(line: FairQueue[str], *, now: float = 0.0) -> list[str]:
    items = []
    while (item := line.pop(now)) is not None:
        items.append(item)
    return items


def test_the_higher_class_goes_first_and_equals_in_order_of_arrival() -> None:
    line = queue()
    push(line, "b", priority="batch")
    push(line, "n1", now=1.0)
    push(line, "n2", now=2.0)
    push(line, "i", priority="interactive", now=3.0)

    assert drain(line, now=3.0) == ["i", "n1", "n2", "b"]


def test_waiting_lifts_a_request_over_younger_ones_of_a_higher_class() -> None:
    line = queue()
    push(line, "old batch", priority="batch", now=0.0)
    push(line, "young", priority="interactive", now=21.0)

    assert line.pop(21.0) == "old batch"


def test_a_class_takes_so_many_and_leaves_the_others_their_room() -> None:
    line = queue(max_waiting=1)

    assert push(line, "a", priority="batch") is not None
    assert push(line, "b", priority="batch") is None
    assert push(line, "c", priority="interactive") is not None
    assert line.num_waiting() == {"interactive": 1, "normal": 0, "batch": 1}


def test_a_key_that_floods_does_not_keep_another_waiting() -> None:
    line = queue()
    for index in range(100):
        push(line, f"flood {index}", key="flood")
    push(line, "guest", key="guest", now=1.0)

    assert "guest" in [line.pop(1.0) for _ in range(2)]


def test_a_key_of_twice_the_weight_gets_twice_as_much() -> None:
    line = queue()
    for index in range(60):
        push(line, f"a{index}", key="a", weight=2, cost=10)
        push(line, f"b{index}", key="b", weight=1, cost=10)
    first = [line.pop(0.0) for _ in range(30)]

    assert sum(str(item).startswith("a") for item in first) == 20


def test_who_left_is_never_called() -> None:
    line = queue()
    waiting = [push(line, str(index)) for index in range(50)]
    for one in waiting[:49]:
        assert one is not None
        line.remove(one)
        line.remove(one)

    assert drain(line) == ["49"]
    assert len(line) == 0


def test_a_key_is_not_charged_for_requests_that_left() -> None:
    line = queue()
    for index in range(60):
        push(line, f"b{index}", key="b")
    left = [push(line, f"gone {index}", key="a", cost=1000) for index in range(50)]
    for one in left:
        assert one is not None
        line.remove(one)
    push(line, "a", key="a")

    assert "a" in [line.pop(0.0) for _ in range(2)]


costs = st.lists(st.integers(1, 500), min_size=40, max_size=40)


@given(costs_a=costs, costs_b=costs, weight_a=st.integers(1, 5), weight_b=st.integers(1, 5))
def test_backlogged_keys_get_their_shares_within_one_request_of_each(
    costs_a: list[int], costs_b: list[int], weight_a: int, weight_b: int
) -> None:
    line = queue()
    for index, (cost_a, cost_b) in enumerate(zip(costs_a, costs_b, strict=True)):
        push(line, f"a{index}", key="a", weight=weight_a, cost=cost_a)
        push(line, f"b{index}", key="b", weight=weight_b, cost=cost_b)
    served = {"a": 0, "b": 0}
    left = {"a": 40, "b": 40}
    bound = max(costs_a) / weight_a + max(costs_b) / weight_b
    while all(left.values()):
        item = line.pop(0.0)
        assert item is not None
        key, index = item[0], int(item[1:])
        served[key] += (costs_a if key == "a" else costs_b)[index]
        left[key] -= 1
        assert abs(served["a"] / weight_a - served["b"] / weight_b) <= bound + 1e-6


@given(
    shares=st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 99)), min_size=20, max_size=80),
    leaves=st.sets(st.integers(0, 79)),
)
def test_whoever_leaves_keys_that_wait_get_their_shares(shares: list[tuple[str, int]], leaves: set[int]) -> None:
    line = queue()
    entries = [push(line, str(number), key=key, cost=cost) for number, (key, cost) in enumerate(shares)]
    stay = [number for number in range(len(shares)) if number not in leaves]
    for number in leaves & set(range(len(shares))):
        entry = entries[number]
        assert entry is not None
        line.remove(entry)
    served = {"a": 0, "b": 0}
    left = {key: sum(shares[number][0] == key for number in stay) for key in "ab"}
    while all(left.values()):
        item = line.pop(0.0)
        assert item is not None
        key, cost = shares[int(item)]
        served[key] += cost
        left[key] -= 1
        assert abs(served["a"] - served["b"]) <= 2 * 99


events = st.tuples(st.sampled_from(["push", "pop", "remove"]), st.integers(0, 2), st.integers(0, 3), st.integers(1, 99))


@settings(max_examples=60)
@given(steps=st.lists(events, max_size=120))
def test_everyone_who_waits_is_called_once_or_leaves(steps: list[tuple[str, int, int, int]]) -> None:
    line = queue(max_waiting=10)
    waiting: dict[str, object] = {}
    for number, (event, rank, key, cost) in enumerate(steps):
        if event == "push":
            num_of_class = line.num_waiting()[PRIORITIES[rank]]
            entry = push(line, str(number), priority=PRIORITIES[rank], key=str(key), cost=cost, now=float(number))
            assert (entry is None) == (num_of_class == 10)
            if entry is not None:
                waiting[str(number)] = entry
        elif event == "pop":
            item = line.pop(float(number))
            assert (item is None) == (not waiting)
            if item is not None:
                del waiting[item]
        elif waiting:
            line.remove(waiting.pop(next(iter(waiting))))
        assert len(line) == len(waiting)
    assert sorted(drain(line, now=1e6)) == sorted(waiting)


@given(gap_s=st.floats(0.2, 3.0), num_per_gap=st.integers(1, 3))
def test_nobody_who_came_two_ageings_later_goes_before_a_request_of_a_lower_class(
    gap_s: float, num_per_gap: int
) -> None:
    line = queue()
    push(line, "patient", priority="batch", now=0.0)
    now = 0.0
    for _ in range(600):
        for _ in range(num_per_gap):
            push(line, str(now), priority="interactive", now=now)
        item = line.pop(now)
        if item == "patient":
            break
        assert item is not None
        assert float(item) <= 20.0
        now += gap_s
    else:
        assert now <= 20.0 * num_per_gap
