"""Who runs when: budget, order, admission, preemption, ends. With a fake model that draws fixed tokens."""

from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.engine.config import SchedulerConfig
from headrace.engine.core.kv_cache import KVCacheBlocks
from headrace.engine.core.scheduler import Scheduler
from headrace.engine.core.step_plan import StepPlan, StepResult
from headrace.engine.sampling_params import SamplingParams
from headrace.engine.wire.messages import TokenDelta
from headrace.testing.core_driver import add_request

BLOCK_SIZE = 4
EOS = 0


def make_scheduler(
    *,
    num_blocks: int = 100,
    max_num_seqs: int = 8,
    budget: int = 64,
    max_model_len: int = 64,
    policy: str = "fcfs",
    enable_prefix_caching: bool = True,
    **limits: Any,
) -> Scheduler:
    config = SchedulerConfig(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        max_model_len=max_model_len,
        policy="priority" if policy == "priority" else "fcfs",
        **limits,
    )
    cache = KVCacheBlocks(num_blocks, block_size=BLOCK_SIZE, enable_prefix_caching=enable_prefix_caching)
    return Scheduler(config, cache=cache, eos_token_ids=(EOS,))


def tokens_of(plan: StepPlan) -> dict[str, int]:
    return {request.request_id: request.num_tokens for request in plan.scheduled}


def draw(plan: StepPlan, token_id: int = 7) -> StepResult:
    return StepResult(token_ids={request.request_id: token_id for request in plan.scheduled if request.is_sampled})


def run_step(scheduler: Scheduler, token_id: int = 7) -> tuple[StepPlan, tuple[TokenDelta, ...]]:
    plan = scheduler.schedule()
    deltas = scheduler.update(plan, draw(plan, token_id))
    scheduler.check_integrity()
    return plan, deltas


def test_a_prompt_is_computed_whole_and_then_one_token_a_step() -> None:
    scheduler = make_scheduler()
    scheduler.add(add_request("a", [1] * 10, max_tokens=3))
    assert [tokens_of(run_step(scheduler)[0]) for _ in range(3)] == [{"a": 10}, {"a": 1}, {"a": 1}]
    assert not scheduler.has_work


def test_a_long_prompt_is_computed_in_chunks_of_the_budget() -> None:
    scheduler = make_scheduler(budget=8)
    scheduler.add(add_request("a", [1] * 20, max_tokens=2))
    plans = [run_step(scheduler) for _ in range(4)]
    assert [tokens_of(plan) for plan, _ in plans] == [{"a": 8}, {"a": 8}, {"a": 4}, {"a": 1}]
    assert [len(deltas) for _, deltas in plans] == [0, 0, 1, 1]


def test_decodes_get_their_token_before_prefills_take_the_rest() -> None:
    scheduler = make_scheduler(budget=8)
    scheduler.add(add_request("decoding", [1, 2], max_tokens=9))
    run_step(scheduler)
    scheduler.add(add_request("long", [2] * 20))
    for _ in range(2):
        assert tokens_of(run_step(scheduler)[0]) == {"decoding": 1, "long": 7}


def test_an_older_prefill_yields_to_a_younger_decode() -> None:
    scheduler = make_scheduler(budget=8)
    scheduler.add(add_request("long", [2] * 30))
    run_step(scheduler)
    scheduler.add(add_request("short", [1]))
    for _ in range(3):
        run_step(scheduler)
    plan, _ = run_step(scheduler)
    assert tokens_of(plan) == {"long": 1, "short": 1}


def test_short_prompts_are_answered_beside_a_long_one() -> None:
    scheduler = make_scheduler(budget=16, num_blocks=200, max_model_len=400)
    scheduler.add(add_request("long", [1] * 200))
    run_step(scheduler)
    for name in ("short 1", "short 2"):
        scheduler.add(add_request(name, [2] * 6))
    assert tokens_of(run_step(scheduler)[0]) == {"long": 8, "short 1": 6, "short 2": 2}


def test_a_long_prompt_moves_on_under_a_stream_of_short_ones() -> None:
    scheduler = make_scheduler(budget=16, num_blocks=200, max_model_len=400, max_num_seqs=4)
    scheduler.add(add_request("long", [1] * 200, max_tokens=1))
    num_steps = 0
    while "long" in scheduler._requests:
        scheduler.add(add_request(f"short {num_steps}", [2] * 15, max_tokens=1))
        run_step(scheduler)
        num_steps += 1
    assert num_steps <= 200 // 8


def test_a_long_prompt_takes_what_nobody_else_wants() -> None:
    scheduler = make_scheduler(budget=16, num_blocks=200, max_model_len=400)
    scheduler.add(add_request("long", [1] * 200))
    scheduler.add(add_request("short", [2] * 3))
    assert tokens_of(run_step(scheduler)[0]) == {"long": 13, "short": 3}


def test_long_prompts_are_computed_one_after_the_other_and_short_ones_pass_the_second() -> None:
    scheduler = make_scheduler(budget=16, num_blocks=200, max_model_len=400)
    scheduler.add(add_request("long 1", [1] * 40))
    scheduler.add(add_request("long 2", [2] * 40))
    scheduler.add(add_request("short", [3] * 4))
    plans = [tokens_of(run_step(scheduler)[0]) for _ in range(4)]
    assert plans[:2] == [{"long 1": 12, "short": 4}, {"long 1": 15, "short": 1}]
    assert plans[2] == {"long 1": 13, "short": 1, "long 2": 2}
    assert plans[3] == {"long 1": 1, "short": 1, "long 2": 14}


def test_with_priorities_a_long_prompt_that_goes_first_does_not_wait_for_one_at_work() -> None:
    scheduler = make_scheduler(budget=16, num_blocks=200, max_model_len=400, policy="priority")
    scheduler.add(add_request("bulk", [1] * 100, priority=5))
    run_step(scheduler)
    scheduler.add(add_request("urgent", [2] * 100, priority=0))
    run_step(scheduler)
    assert "urgent" in tokens_of(run_step(scheduler)[0])


def test_without_chunks_a_prompt_waits_until_a_step_holds_it_whole() -> None:
    scheduler = make_scheduler(budget=64, enable_chunked_prefill=False)
    scheduler.add(add_request("decoding", [1], max_tokens=3))
    run_step(scheduler)
    scheduler.add(add_request("whole", [2] * 40))
    scheduler.add(add_request("next", [3] * 40))
    assert tokens_of(run_step(scheduler)[0]) == {"decoding": 1, "whole": 40}
    assert tokens_of(run_step(scheduler)[0]) == {"decoding": 1, "whole": 1, "next": 40}


def test_more_waiting_requests_than_allowed_are_refused_as_overload() -> None:
    scheduler = make_scheduler(max_num_seqs=1, max_num_queued_reqs=2)
    refused = [scheduler.add(add_request(str(number), [1])) for number in range(5)]
    assert [delta is not None for delta in refused] == [False, False, False, True, True]
    last = refused[-1]
    assert last is not None
    assert (last.finish_reason, last.error_kind) == ("error", "OverloadedError")
    assert "max_num_queued_reqs" in str(last.error)
    assert scheduler.statistics().num_refused == 2
    assert scheduler.statistics().num_waiting == 3


def test_more_waiting_prompt_tokens_than_allowed_are_refused_as_overload() -> None:
    scheduler = make_scheduler(max_num_seqs=1, max_num_queued_tokens=30)
    assert scheduler.add(add_request("fits", [1] * 20)) is None
    refused = scheduler.add(add_request("too many", [1] * 20))
    assert refused is not None
    assert refused.error_kind == "OverloadedError"
    assert scheduler.add(add_request("short", [1] * 10)) is None


def test_the_first_delta_tells_how_long_the_request_waited_and_was_prefilled() -> None:
    scheduler = make_scheduler(budget=8)
    scheduler.add(add_request("a", [1] * 12, max_tokens=2), now=10.0)
    plan = scheduler.schedule(now=12.0)
    assert scheduler.update(plan, draw(plan), now=13.0) == ()
    times = []
    for now in (13.0, 14.0):
        plan = scheduler.schedule(now=now)
        (delta,) = scheduler.update(plan, draw(plan), now=now + 0.5)
        times.append((delta.queue_s, delta.prefill_s))
    assert times == [(2.0, 1.5), (None, None)]


def test_after_preempting_all_every_request_waits_and_holds_nothing() -> None:
    scheduler = make_scheduler()
    for name in "ab":
        scheduler.add(add_request(name, [1] * 5))
    run_step(scheduler)
    plan = scheduler.preempt_all()
    assert (sorted(plan.released), plan.scheduled) == (["a", "b"], ())
    scheduler.check_integrity()
    assert scheduler.statistics().num_waiting == 2
    assert [request.request_id for request in scheduler.schedule().admitted] == ["a", "b"]


def test_a_cache_salt_keeps_prefixes_apart() -> None:
    scheduler = make_scheduler()
    cached = []
    for number, salt in enumerate((None, None, "s", "s", "t")):
        message = add_request(str(number), list(range(1, 11)), max_tokens=1)
        scheduler.add(msgspec.structs.replace(message, cache_salt=salt))
        _, (delta,) = run_step(scheduler)
        cached.append(delta.num_cached_tokens)
    assert cached == [0, 8, 0, 8, 0]


def test_no_more_requests_run_than_max_num_seqs() -> None:
    scheduler = make_scheduler(max_num_seqs=2)
    for name in "abc":
        scheduler.add(add_request(name, [1], max_tokens=2))
    assert set(tokens_of(run_step(scheduler)[0])) == {"a", "b"}
    run_step(scheduler)
    assert set(tokens_of(run_step(scheduler)[0])) == {"c"}


def test_requests_are_admitted_in_order_of_arrival() -> None:
    scheduler = make_scheduler(max_num_seqs=1)
    for name in "abc":
        scheduler.add(add_request(name, [1], max_tokens=1))
    assert [next(iter(tokens_of(run_step(scheduler)[0]))) for _ in range(3)] == ["a", "b", "c"]


def test_with_priorities_the_lower_number_goes_first_and_ties_by_arrival() -> None:
    scheduler = make_scheduler(max_num_seqs=1, policy="priority")
    for name, priority, arrival in (("late", 1, 2.0), ("low", 5, 0.0), ("early", 1, 1.0), ("urgent", -3, 9.0)):
        scheduler.add(add_request(name, [1], max_tokens=1, priority=priority, arrival_time=arrival))
    order = [next(iter(tokens_of(run_step(scheduler)[0]))) for _ in range(4)]
    assert order == ["urgent", "early", "late", "low"]


def test_a_priority_is_refused_where_it_would_be_ignored() -> None:
    refused = make_scheduler().add(add_request("a", [1], priority=2))
    assert refused is not None
    assert refused.finish_reason == "error"
    assert "scheduling_policy" in str(refused.error)


def test_nothing_overtakes_the_first_that_does_not_fit() -> None:
    scheduler = make_scheduler(num_blocks=4)
    scheduler.add(add_request("holder", [1] * 7))
    run_step(scheduler)
    scheduler.add(add_request("big", [2] * 12))
    scheduler.add(add_request("small", [3]))
    assert set(tokens_of(run_step(scheduler)[0])) == {"holder"}
    scheduler.abort(["holder"])
    assert set(tokens_of(run_step(scheduler)[0])) >= {"big"}


def test_a_block_is_left_for_each_running_request_to_grow() -> None:
    scheduler = make_scheduler(num_blocks=4)
    scheduler.add(add_request("holder", [1] * 7, max_tokens=9))
    run_step(scheduler)
    scheduler.add(add_request("two blocks", [2] * 8))
    assert set(tokens_of(run_step(scheduler)[0])) == {"holder"}
    assert scheduler.statistics().num_waiting == 1


def test_a_prompt_larger_than_the_cache_is_refused_at_once_and_others_go_on() -> None:
    scheduler = make_scheduler(num_blocks=3)
    refused = scheduler.add(add_request("huge", [1] * 13))
    scheduler.add(add_request("fits", [1] * 12, max_tokens=5))
    assert refused is not None
    assert refused.finish_reason == "error"
    assert "13 tokens" in str(refused.error)
    assert tokens_of(run_step(scheduler)[0]) == {"fits": 12}


@pytest.mark.parametrize(("num_tokens", "text"), [(0, "empty"), (64, "64 tokens")])
def test_a_prompt_that_leaves_no_room_for_an_answer_is_refused(num_tokens: int, text: str) -> None:
    refused = make_scheduler().add(add_request("a", [1] * num_tokens))
    assert refused is not None
    assert text in str(refused.error)


def test_the_last_in_order_is_preempted_and_computes_its_tokens_again() -> None:
    scheduler = make_scheduler(num_blocks=4, enable_prefix_caching=False)
    scheduler.add(add_request("old", [1] * 7, max_tokens=8))
    scheduler.add(add_request("new", [2] * 4, max_tokens=8))
    for _ in range(2):
        assert set(tokens_of(run_step(scheduler)[0])) == {"old", "new"}
    plan, _ = run_step(scheduler)
    assert scheduler.statistics().num_preemptions == 1
    assert set(tokens_of(plan)) == {"old"}
    assert plan.released == ("new",)
    while not plan.admitted:
        plan, _ = run_step(scheduler)
    (resumed,) = plan.admitted
    assert resumed.request_id == "new"
    assert resumed.token_ids == (2, 2, 2, 2, 7, 7)
    assert tokens_of(plan)["new"] == len(resumed.token_ids)


def test_a_request_alone_ends_with_length_when_the_cache_is_full() -> None:
    scheduler = make_scheduler(num_blocks=2)
    scheduler.add(add_request("a", [1] * 5, max_tokens=50))
    deltas: tuple[TokenDelta, ...] = ()
    while scheduler.has_work:
        _, deltas = run_step(scheduler)
    assert deltas[-1].finish_reason == "length"
    assert scheduler.statistics().num_preemptions == 0


def test_max_tokens_ends_a_request_with_length() -> None:
    scheduler = make_scheduler()
    scheduler.add(add_request("a", [1], max_tokens=1))
    _, (delta,) = run_step(scheduler)
    assert (delta.new_token_ids, delta.finish_reason, delta.stop_reason) == ((7,), "length", None)


def test_the_end_of_the_context_ends_a_request_with_length() -> None:
    scheduler = make_scheduler(max_model_len=6)
    scheduler.add(add_request("a", [1] * 4, max_tokens=50))
    finishes = [run_step(scheduler)[1][0].finish_reason for _ in range(2)]
    assert finishes == [None, "length"]


@pytest.mark.parametrize(("token_id", "stop_reason"), [(EOS, None), (9, 9)])
def test_a_stop_token_ends_a_request_and_is_named_unless_it_is_an_end_of_sequence(
    token_id: int, stop_reason: int | None
) -> None:
    scheduler = make_scheduler()
    scheduler.add(add_request("a", [1], stop_token_ids=(EOS, 9)))
    _, (delta,) = run_step(scheduler, token_id)
    assert (delta.new_token_ids, delta.finish_reason, delta.stop_reason) == ((token_id,), "stop", stop_reason)


def test_an_end_of_sequence_that_is_no_stop_token_is_passed_over() -> None:
    scheduler = make_scheduler()
    scheduler.add(add_request("a", [1], stop_token_ids=(9,)))
    assert run_step(scheduler, EOS)[1][0].finish_reason is None


def test_stop_tokens_are_passed_over_before_min_tokens() -> None:
    scheduler = make_scheduler()
    params = SamplingParams(temperature=0.0, min_tokens=2)
    scheduler.add(add_request("a", [1], params=params, stop_token_ids=(EOS,)))
    assert [run_step(scheduler, EOS)[1][0].finish_reason for _ in range(2)] == [None, "stop"]


def test_an_abort_frees_the_blocks_and_gives_a_last_delta() -> None:
    scheduler = make_scheduler(num_blocks=10, max_num_seqs=1)
    scheduler.add(add_request("running", [1] * 8))
    scheduler.add(add_request("waiting", [1] * 8))
    run_step(scheduler)
    deltas = scheduler.abort(["waiting", "unknown", "running", "running"])
    assert [(d.request_id, d.finish_reason, d.new_token_ids) for d in deltas] == [
        ("waiting", "abort", ()),
        ("running", "abort", ()),
    ]
    assert not scheduler.has_work
    scheduler.check_integrity()
    assert scheduler.abort(["running"]) == ()


def test_a_second_request_finds_the_first_ones_prefix() -> None:
    scheduler = make_scheduler()
    scheduler.add(add_request("a", list(range(1, 11)), max_tokens=1))
    run_step(scheduler)
    scheduler.add(add_request("b", [*range(1, 9), 50, 51], max_tokens=1))
    plan, (delta,) = run_step(scheduler)
    assert tokens_of(plan) == {"b": 2}
    assert delta.num_cached_tokens == 8
    statistics = scheduler.statistics()
    assert (statistics.prefix_cache_queries, statistics.prefix_cache_hits, statistics.prompt_tokens) == (20, 8, 20)


def test_requests_without_a_seed_get_different_ones_in_a_fixed_order() -> None:
    seeds = []
    for _ in range(2):
        scheduler = make_scheduler()
        for name in "ab":
            scheduler.add(add_request(name, [1]))
        seeds.append([request.sampling_seed for request in scheduler.schedule().admitted])
    assert seeds[0] == seeds[1]
    assert seeds[0][0] != seeds[0][1]


class SchedulerMachine(RuleBasedStateMachine):
    """Under any arrivals and aborts: budget and limits hold, order holds, every request ends exactly once."""

    BUDGET = 10
    MAX_SEQS = 4

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = make_scheduler(
            num_blocks=9, max_num_seqs=self.MAX_SEQS, budget=self.BUDGET, max_model_len=30, policy="priority"
        )
        self.live: dict[str, tuple[int, int]] = {}
        self.tokens: dict[str, list[int]] = {}
        self.computed: dict[str, int] = {}
        self.ends: dict[str, str] = {}
        self.num_added = 0

    @rule(
        prompt=st.lists(st.integers(1, 2), min_size=1, max_size=28),
        max_tokens=st.integers(1, 20),
        priority=st.integers(0, 2),
    )
    def add(self, prompt: list[int], max_tokens: int, priority: int) -> None:
        request_id = str(self.num_added)
        self.num_added += 1
        message = add_request(
            request_id, prompt, max_tokens=max_tokens, stop_token_ids=(EOS,), priority=priority, arrival_time=1.0
        )
        assert self.scheduler.add(message) is None
        self.live[request_id] = (priority, self.num_added)
        self.tokens[request_id] = list(prompt)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.live)))
        self._take(self.scheduler.abort([request_id]))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        plan = self.scheduler.schedule()
        assert plan.scheduled, "live requests, and no progress"
        assert plan.num_tokens <= self.BUDGET
        self._check_admissions(plan)
        self._check_spans(plan)
        sampled = {r.request_id: data.draw(st.integers(0, 3)) for r in plan.scheduled if r.is_sampled}
        deltas = self.scheduler.update(plan, StepResult(token_ids=sampled))
        assert {d.request_id: d.new_token_ids for d in deltas} == {key: (value,) for key, value in sampled.items()}
        self._take(deltas)

    @invariant()
    def is_sound(self) -> None:
        self.scheduler.check_integrity()
        statistics = self.scheduler.statistics()
        assert statistics.num_running <= self.MAX_SEQS
        assert statistics.num_running + statistics.num_waiting == len(self.live)

    def teardown(self) -> None:
        for _ in range(2000):
            if not self.scheduler.has_work:
                break
            plan = self.scheduler.schedule()
            self._take(self.scheduler.update(plan, draw(plan)))
        assert len(self.ends) == self.num_added, "a request did not end"
        self.scheduler.check_integrity()

    def _check_admissions(self, plan: StepPlan) -> None:
        for request_id in plan.released:
            self.computed.pop(request_id, None)
        waiting = [r for r in self.live if r not in self.computed]
        admitted = [r.request_id for r in plan.admitted]
        for index, first in enumerate(admitted):  # a long prompt may begin after short ones that came later
            assert all(self.live[first] < self.live[r] or self._is_long(r, 0) for r in admitted[index + 1 :])
        long_at_work = [r.request_id for r in plan.scheduled if self._is_long(r.request_id, r.start)]
        for late in admitted:
            for early in set(waiting) - set(admitted):
                may_pass = self._is_long(early, 0) and any(self.live[r] < self.live[early] for r in long_at_work)
                assert self.live[late] < self.live[early] or may_pass, "a request overtook one that goes first"
        for request in plan.admitted:
            assert list(request.token_ids) == self.tokens[request.request_id]
            self.computed[request.request_id] = 0

    def _is_long(self, request_id: str, num_computed: int) -> bool:
        return len(self.tokens[request_id]) - num_computed > self.BUDGET // 2

    def _check_spans(self, plan: StepPlan) -> None:
        fresh = {request.request_id for request in plan.admitted}
        for request in plan.scheduled:
            assert request.num_tokens > 0
            assert request.start == self.computed[request.request_id] or request.request_id in fresh
            end = request.start + request.num_tokens
            self.computed[request.request_id] = end
            assert request.is_sampled == (end == len(self.tokens[request.request_id]))

    def _take(self, deltas: tuple[TokenDelta, ...]) -> None:
        for delta in deltas:
            assert delta.request_id not in self.ends
            self.tokens[delta.request_id] += delta.new_token_ids
            if delta.finish_reason is not None:
                self.ends[delta.request_id] = delta.finish_reason
                del self.live[delta.request_id]
                self.computed.pop(delta.request_id, None)


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
