import gc

from hypothesis import given
from hypothesis import strategies as st

from headrace.gateway.prefix_index.run import Hold, Run

NUM_BLOCKS = 12
INDICES = st.integers(0, NUM_BLOCKS - 1)


def leading(blocks: set[int]) -> int:
    return next(at for at in range(NUM_BLOCKS + 1) if at not in blocks)


@given(
    st.lists(st.tuples(st.booleans(), INDICES), max_size=40),
    st.integers(0, NUM_BLOCKS),
    st.integers(0, NUM_BLOCKS),
)
def test_a_hold_equals_the_set_of_its_blocks_before_and_after_a_cut(
    events: list[tuple[bool, int]], num_expected: int, num_cut: int
) -> None:
    hold, stored = Hold(), set[int]()
    for is_stored, index in events:
        (hold.add if is_stored else hold.discard)(index)
        (stored.add if is_stored else stored.discard)(index)
        assert hold.num_leading(is_stored=True) == hold.num_stored == leading(stored)
    hold.num_expected = num_expected
    first = hold.cut(num_cut)

    for part, has, expected in (
        (first, {at for at in stored if at < num_cut}, set(range(min(num_cut, num_expected)))),
        (hold, {at - num_cut for at in stored if at >= num_cut}, set(range(num_expected - num_cut))),
    ):
        assert part.num_stored == leading(has)
        assert part.num_leading(is_stored=True) == leading(has | expected)
        assert part.num_leading(is_stored=False) == leading(expected)
        assert part.is_empty == (not has and not expected)


def test_the_garbage_collector_does_not_look_at_runs_and_what_caches_have_of_them() -> None:
    run = Run(0, parent=Run(1))
    run.holds[0] = Hold()
    assert not any(map(gc.is_tracked, (run, run.parent, run.holds[0])))
