"""What an executor makes of its workers' messages and ends; the workers are threads that say what the test wants."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from headrace.engine.core.step_plan import StepPlan, StepResult
from headrace.engine.executor.worker_group import GroupMember, WorkerGroup
from headrace.engine.executor.worker_wire import (
    Called,
    CallWorker,
    FromWorker,
    Launch,
    Launched,
    Leave,
    LinkClosedError,
    Step,
    Stepped,
    ToWorker,
    WorkerFailed,
    WorkerLink,
)
from headrace.engine.wire.errors import to_wire
from headrace.engine.wire.remote_call import RemoteCall, pack_results, unpack_call
from headrace.errors import EngineError, InvalidRequestError, SettingsError

EMPTY = StepPlan(released=(), admitted=(), scheduled=())

Answer = Callable[["FakeWorker", ToWorker], FromWorker | None]


class FakeWorker:
    """Answers each message as `answer` says; HANG_UP ends it without a word."""

    def __init__(self, rank: int, answer: Answer) -> None:
        ours, theirs = socket.socketpair()
        self.rank = rank
        self.received: list[ToWorker] = []
        self.num_ends = 0
        self.has_ended = threading.Event()
        self.may_answer = threading.Event()
        self.may_answer.set()
        self._link: WorkerLink[ToWorker] = WorkerLink(theirs, received=ToWorker)
        self._answer = answer
        self.member = GroupMember(WorkerLink(ours, received=FromWorker), self)
        self._thread = threading.Thread(target=self._run, name=f"fake-worker-{rank}")
        self._thread.start()

    def end(self, *, timeout_s: float) -> str:
        """As a `WorkerHandle`."""
        self.num_ends += 1
        self.may_answer.set()
        self._thread.join(10.0)
        assert not self._thread.is_alive()
        return f"(fake {self.rank}) ended"

    def _run(self) -> None:
        with contextlib.ExitStack() as ending:
            ending.callback(self.has_ended.set)
            ending.callback(self._link.close)
            ending.enter_context(contextlib.suppress(LinkClosedError))
            while not isinstance(message := self._link.receive(), Leave):
                self.received.append(message)
                self.may_answer.wait(10.0)
                if (answer := self._answer(self, message)) is HANG_UP:
                    return
                if answer is not None:
                    self._link.send(answer)
                if isinstance(answer, WorkerFailed):
                    return


HANG_UP = Launched(-1)


def healthy(worker: FakeWorker, message: ToWorker) -> FromWorker | None:
    match message:
        case Launch():
            return Launched(100 + worker.rank)
        case Step():
            return Stepped(StepResult(token_ids={"r": len(worker.received)})) if worker.rank == 0 else None
        case CallWorker(call_id=call_id, call=call):
            return Called(call_id=call_id, results=pack_results([(worker.rank, unpack_call(call).name)], name="f"))
        case _:
            raise AssertionError(message)


def failing_step(failure: FromWorker) -> Answer:
    return lambda worker, message: failure if isinstance(message, Step) else healthy(worker, message)


def failed(error: Exception, *, is_peer_lost: bool = False) -> WorkerFailed:
    return WorkerFailed(error=to_wire(error), traceback="Traceback: deep inside", is_peer_lost=is_peer_lost)


def launch(rank: int) -> Launch:
    return Launch(config=b"", rank=rank, size=2, host="", meeting_host="", meeting_port=0, device_index=0)


class Started:
    """A group over fake workers."""

    def __init__(self, workers: list[FakeWorker], *, step_timeout_s: float) -> None:
        self.workers = workers
        self.group = WorkerGroup([worker.member for worker in workers], step_timeout_s=step_timeout_s)

    def launch(self) -> int:
        return self.group.launch([launch(worker.rank) for worker in self.workers])


@pytest.fixture
def start() -> Iterator[Callable[..., Started]]:
    with contextlib.ExitStack() as cleanup:

        def make(*answers: Answer, step_timeout_s: float = 10.0) -> Started:
            workers = [FakeWorker(rank, answer) for rank, answer in enumerate(answers)]
            started = Started(workers, step_timeout_s=step_timeout_s)
            cleanup.callback(started.group.close)
            return started

        yield make


def test_the_blocks_are_the_least_of_all_workers(start: Callable[..., Started]) -> None:
    assert start(healthy, healthy).launch() == 100


def test_the_others_are_told_what_the_first_drew(start: Callable[..., Started]) -> None:
    started = start(healthy, healthy)
    started.launch()
    results = [started.group.execute(EMPTY).token_ids for _ in range(3)]
    started.group.close()
    steps = [message for message in started.workers[1].received if isinstance(message, Step)]
    assert [dict(step.drawn) for step in steps] == [{}, *map(dict, results[:2])]


def test_a_call_reaches_every_worker_and_answers_come_by_rank(start: Callable[..., Started]) -> None:
    started = start(healthy, healthy)
    started.launch()
    assert started.group.call(RemoteCall(method="ping")) == [(0, "ping"), (1, "ping")]


def test_what_a_method_raises_is_raised_and_the_group_goes_on(start: Callable[..., Started]) -> None:
    def refuse(worker: FakeWorker, message: ToWorker) -> FromWorker | None:
        if isinstance(message, CallWorker):
            return Called(call_id=message.call_id, error=to_wire(InvalidRequestError("no such adapter", param="lora")))
        return healthy(worker, message)

    started = start(healthy, refuse)
    started.launch()
    with pytest.raises(InvalidRequestError, match="no such adapter"):
        started.group.call(RemoteCall(method="add_lora"))
    assert started.group.execute(EMPTY).token_ids == {"r": 3}


def test_an_answer_that_comes_too_late_is_thrown_away(start: Callable[..., Started]) -> None:
    started = start(healthy, healthy)
    started.launch()
    started.workers[1].may_answer.clear()
    with pytest.raises(TimeoutError, match="ping did not return on every worker in time"):
        started.group.call(RemoteCall(method="ping", timeout_s=0.05))
    started.workers[1].may_answer.set()
    assert started.group.call(RemoteCall(method="pong")) == [(0, "pong"), (1, "pong")]


def test_a_step_that_never_ends_is_a_hang(start: Callable[..., Started]) -> None:
    started = start(healthy, healthy, step_timeout_s=0.05)
    started.launch()
    started.workers[0].may_answer.clear()
    with pytest.raises(EngineError, match=r"workers hang: they did not finish a step within 0\.05 s"):
        started.group.execute(EMPTY)


def test_a_worker_that_ends_in_silence_is_named_with_its_end(start: Callable[..., Started]) -> None:
    started = start(
        lambda worker, message: None if isinstance(message, Step) else healthy(worker, message), failing_step(HANG_UP)
    )
    started.launch()
    with pytest.raises(EngineError, match=r"worker 1 of 2 \(fake 1\) ended"):
        started.group.execute(EMPTY)


def test_a_worker_that_ends_while_nothing_is_to_do_is_noticed(start: Callable[..., Started]) -> None:
    def leave_after_a_call(worker: FakeWorker, message: ToWorker) -> FromWorker | None:
        return HANG_UP if isinstance(message, CallWorker) else healthy(worker, message)

    started = start(healthy, leave_after_a_call)
    started.launch()
    started.group.check()
    with pytest.raises(EngineError, match=r"worker 1 of 2 \(fake 1\) ended"):
        started.group.call(RemoteCall(method="ping"))
    with pytest.raises(EngineError, match=r"worker 1 of 2 \(fake 1\) ended"):
        started.group.check()


def test_the_first_cause_is_told_and_not_what_followed_from_it(start: Callable[..., Started]) -> None:
    lost = failed(EngineError("worker 0 lost the others"), is_peer_lost=True)

    def fail_after_the_first(worker: FakeWorker, message: ToWorker) -> FromWorker | None:
        if isinstance(message, Step):
            assert started.workers[0].has_ended.wait(10.0)
            return failed(ValueError("NaN in layer 3"))
        return healthy(worker, message)

    started = start(failing_step(lost), fail_after_the_first)
    started.launch()
    with pytest.raises(EngineError, match="worker 1 of 2 failed: ValueError: NaN in layer 3") as caught:
        started.group.execute(EMPTY)
    assert "deep inside" in str(caught.value.__cause__)


def test_a_worker_that_lost_the_others_is_told_when_nothing_else_shows(start: Callable[..., Started]) -> None:
    lost = failed(EngineError("worker 0 lost the others"), is_peer_lost=True)
    started = start(failing_step(lost))
    started.launch()
    with pytest.raises(EngineError, match="worker 0 of 1 failed: worker 0 lost the others"):
        started.group.execute(EMPTY)


def test_what_a_worker_cannot_load_is_the_setting_s_error(start: Callable[..., Started]) -> None:
    refusal = failed(SettingsError("no *.safetensors here", param="model"))
    started = start(healthy, lambda worker, message: refusal)
    with pytest.raises(SettingsError, match=r"no \*\.safetensors here") as caught:
        started.launch()
    assert caught.value.param == "model"


def test_closing_twice_ends_every_worker(start: Callable[..., Started]) -> None:
    started = start(healthy, healthy)
    started.launch()
    started.group.close()
    started.group.close()
    assert all(worker.num_ends > 0 for worker in started.workers)


def test_messages_cross_whatever_their_size(start: Callable[..., Started]) -> None:
    def echo(worker: FakeWorker, message: ToWorker) -> FromWorker | None:
        if isinstance(message, CallWorker):
            (size,) = unpack_call(message.call).args
            assert isinstance(size, int)
            return Called(call_id=message.call_id, results=pack_results(["x" * size], name="echo"))
        return healthy(worker, message)

    started = start(echo, echo)
    started.launch()
    (first, second) = started.group.call(RemoteCall(method="echo", args=(3_000_000,)))
    assert first == second == "x" * 3_000_000
