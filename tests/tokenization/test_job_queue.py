from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.tokenization.job_queue import JobQueue


@dataclass(eq=False)
class Job:
    name: str
    num_bytes: int
    group: str = "g"


def _queue(*, max_jobs: int = 100, max_bytes: int = 10_000, rate: int = 100) -> JobQueue[Job]:
    return JobQueue(max_jobs=max_jobs, max_bytes=max_bytes, ageing_bytes_per_s=rate)


def _order(queue: JobQueue[Job]) -> list[str]:
    names = []
    while jobs := queue.take(max_bytes=1):
        names += [job.name for job in jobs]
    return names


def test_short_jobs_go_first() -> None:
    queue = _queue()
    for name, num_bytes in (("long", 1000), ("short", 10), ("middle", 100)):
        assert queue.offer(Job(name, num_bytes), now_s=0.0)
    assert _order(queue) == ["short", "middle", "long"]


def test_equal_jobs_keep_the_order_in_which_they_came() -> None:
    queue = _queue()
    for name in "abc":
        queue.offer(Job(name, 10), now_s=0.0)
    assert _order(queue) == ["a", "b", "c"]


def test_a_long_job_is_passed_only_by_what_came_within_its_ageing_time() -> None:
    queue = _queue(rate=100)
    queue.offer(Job("long", 1000), now_s=0.0)
    queue.offer(Job("within 10 s", 10), now_s=9.0)
    queue.offer(Job("after 10 s", 10), now_s=10.5)
    assert _order(queue) == ["within 10 s", "long", "after 10 s"]


def test_one_take_holds_jobs_of_one_group_up_to_the_bytes_asked_for() -> None:
    queue = _queue()
    for name, num_bytes, group in (("a", 10, "x"), ("b", 11, "y"), ("c", 12, "x"), ("d", 13, "x")):
        queue.offer(Job(name, num_bytes, group), now_s=0.0)
    assert [job.name for job in queue.take(max_bytes=25)] == ["a", "c"]
    assert [job.name for job in queue.take(max_bytes=25)] == ["b"]
    assert [job.name for job in queue.take(max_bytes=25)] == ["d"]


def test_a_job_larger_than_a_take_is_taken_alone() -> None:
    queue = _queue()
    queue.offer(Job("large", 500), now_s=0.0)
    queue.offer(Job("larger", 600), now_s=0.0)
    assert [job.name for job in queue.take(max_bytes=100)] == ["large"]


def test_a_full_queue_refuses_and_a_discarded_job_makes_room() -> None:
    queue = _queue(max_jobs=2)
    first, second = Job("first", 1), Job("second", 1)
    assert queue.offer(first, now_s=0.0)
    assert queue.offer(second, now_s=0.0)
    assert not queue.offer(Job("third", 1), now_s=0.0)
    assert queue.discard(first)
    assert not queue.discard(first)
    assert queue.offer(Job("third", 1), now_s=0.0)
    assert _order(queue) == ["second", "third"]


def test_what_was_discarded_takes_no_memory_for_long() -> None:
    queue = _queue(rate=1)
    queue.offer(Job("stays", 1), now_s=0.0)
    for number in range(1000):
        job = Job("leaves", 10, group=f"group-{number % 7}")
        queue.offer(job, now_s=0.0)
        queue.discard(job)
    assert sum(map(len, queue._heaps.values())) < 20


def test_bytes_are_bounded_too() -> None:
    queue = _queue(max_bytes=100)
    assert queue.offer(Job("a", 60), now_s=0.0)
    assert not queue.offer(Job("b", 41), now_s=0.0)
    assert queue.offer(Job("c", 40), now_s=0.0)


class QueueModel(RuleBasedStateMachine):
    """The queue against a sorted list."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = _queue(max_jobs=20, max_bytes=500)
        self.waiting: list[tuple[float, int, Job]] = []
        self.now_s = 0.0
        self.num_offered = 0

    @rule(num_bytes=st.integers(1, 90), group=st.sampled_from("xyz"), waited_s=st.floats(0, 1))
    def offer(self, num_bytes: int, group: str, waited_s: float) -> None:
        self.now_s += waited_s
        job = Job("job", num_bytes, group)
        has_room = len(self.waiting) < 20 and sum(job.num_bytes for _, _, job in self.waiting) + num_bytes <= 500
        assert self.queue.offer(job, now_s=self.now_s) == has_room
        if has_room:
            self.waiting.append((self.now_s + num_bytes / 100, self.num_offered, job))
            self.num_offered += 1

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self.waiting))
        self.waiting.remove(entry)
        assert self.queue.discard(entry[2])

    @rule(max_bytes=st.integers(1, 200))
    def take(self, max_bytes: int) -> None:
        expected: list[Job] = []
        in_order = sorted(self.waiting, key=lambda entry: entry[:2])
        for _, _, job in in_order:
            if job.group == in_order[0][2].group:
                if expected and sum(job.num_bytes for job in expected) + job.num_bytes > max_bytes:
                    break
                expected.append(job)
        assert self.queue.take(max_bytes=max_bytes) == expected
        self.waiting = [entry for entry in self.waiting if entry[2] not in expected]

    @invariant()
    def the_counts_agree(self) -> None:
        assert len(self.queue) == len(self.waiting)
        assert self.queue.num_bytes == sum(job.num_bytes for _, _, job in self.waiting)

    def teardown(self) -> None:
        assert {id(job) for job in self.queue.drain()} == {id(job) for _, _, job in self.waiting}
        assert len(self.queue) == self.queue.num_bytes == 0


QueueModel.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestQueueModel = QueueModel.TestCase
