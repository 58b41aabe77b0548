import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import pytest

from headrace.errors import InvalidRequestError, OverloadedError, PayloadTooLargeError, TokenizationError
from headrace.testing.tokenizers import PanicError
from headrace.tokenization.lanes import Lane


@dataclass(frozen=True, eq=False)
class Recorder:
    """Work that upper-cases texts, waits at its gate for `wait` and fails for `crash`, `panic` and `bad`."""

    gate: threading.Event = field(default_factory=threading.Event)
    is_waiting: threading.Event = field(default_factory=threading.Event)
    calls: list[list[str]] = field(default_factory=list)

    def run(self, texts: Sequence[str]) -> list[str]:
        self.calls.append(list(texts))
        if "wait" in texts:
            self.is_waiting.set()
            assert self.gate.wait(20)
        if "crash" in texts:
            raise RuntimeError("boom")
        if "panic" in texts:
            raise PanicError("rust")
        if "bad" in texts:
            raise InvalidRequestError("bad text", param="prompt")
        return [text.upper() for text in texts]


@pytest.fixture
async def lane() -> AsyncIterator[Lane]:
    lane = _lane()
    yield lane
    await lane.aclose(timeout_s=10)


@pytest.fixture
def work() -> "Recorder":
    return Recorder()


def _lane(*, num_threads: int = 1, max_queued_jobs: int = 100, max_queued_bytes: int = 1000) -> Lane:
    return Lane(
        "test",
        num_threads=num_threads,
        max_queued_jobs=max_queued_jobs,
        max_queued_bytes=max_queued_bytes,
        batch_max_bytes=100,
        ageing_bytes_per_s=1000,
    )


async def _hold(lane: Lane, work: Recorder) -> asyncio.Future[object]:
    """Occupy the lane's thread until `work.gate` opens."""
    held = lane.submit(work, "wait", num_bytes=4)
    await asyncio.to_thread(work.is_waiting.wait, 20)
    return held  # type: ignore[return-value]


async def test_a_result_comes_with_its_times(lane: Lane, work: Recorder) -> None:
    finished = await lane.submit(work, "text", num_bytes=4)
    assert finished.value == "TEXT"
    assert finished.queue_wait_s >= 0
    assert finished.run_s >= 0


async def test_what_queued_while_a_call_ran_goes_into_one_call(lane: Lane, work: Recorder) -> None:
    held = await _hold(lane, work)
    futures = [lane.submit(work, text, num_bytes=10) for text in "abc"]
    work.gate.set()
    assert [(await future).value for future in futures] == ["A", "B", "C"]
    await held
    assert work.calls == [["wait"], ["a", "b", "c"]]


async def test_a_call_is_bounded_in_bytes(lane: Lane, work: Recorder) -> None:
    await _hold(lane, work)
    futures = [lane.submit(work, text, num_bytes=40) for text in "abc"]
    work.gate.set()
    await asyncio.wait(futures)
    assert work.calls == [["wait"], ["a", "b"], ["c"]]


async def test_short_texts_go_before_long_ones(lane: Lane, work: Recorder) -> None:
    await _hold(lane, work)
    futures = [lane.submit(work, text, num_bytes=num_bytes) for text, num_bytes in (("long", 300), ("short", 90))]
    work.gate.set()
    await asyncio.wait(futures)
    assert work.calls == [["wait"], ["short"], ["long"]]


async def test_works_that_are_not_equal_never_share_a_call(lane: Lane, work: Recorder) -> None:
    other = Recorder()
    await _hold(lane, work)
    futures = [lane.submit(of, text, num_bytes=1) for of, text in ((work, "a"), (other, "b"), (work, "c"))]
    work.gate.set()
    await asyncio.wait(futures)
    assert (work.calls[1:], other.calls) == ([["a", "c"]], [["b"]])


@pytest.mark.parametrize("bad", ["crash", "panic", "bad"])
async def test_one_bad_text_fails_alone_and_the_thread_lives_on(lane: Lane, work: Recorder, bad: str) -> None:
    await _hold(lane, work)
    futures = [lane.submit(work, text, num_bytes=1) for text in ("a", bad, "b")]
    work.gate.set()
    results = await asyncio.gather(*futures, return_exceptions=True)
    assert isinstance(results[1], InvalidRequestError if bad == "bad" else TokenizationError)
    assert [result.value for result in (results[0], results[2]) if not isinstance(result, BaseException)] == ["A", "B"]
    assert (await lane.submit(work, "after", num_bytes=1)).value == "AFTER"
    assert lane.statistics().num_failed == 1


async def test_a_foreign_error_is_named_and_kept_as_the_cause(lane: Lane, work: Recorder) -> None:
    with pytest.raises(TokenizationError, match="PanicError: rust") as failure:
        await lane.submit(work, "panic", num_bytes=1)
    assert isinstance(failure.value.__cause__, PanicError)


async def test_a_cancelled_job_is_never_run_and_frees_its_place(work: Recorder) -> None:
    lane = _lane(max_queued_jobs=1)
    await _hold(lane, work)
    leaving = lane.submit(work, "leaving", num_bytes=1)
    leaving.cancel()
    await asyncio.sleep(0)
    staying = lane.submit(work, "staying", num_bytes=1)
    work.gate.set()
    await staying
    assert work.calls == [["wait"], ["staying"]]
    await lane.aclose(timeout_s=10)


async def test_a_job_cancelled_while_its_call_ran_is_left_out_of_the_calls_one_by_one(
    lane: Lane, work: Recorder
) -> None:
    held = await _hold(lane, work)
    other = Recorder()
    together = [lane.submit(other, text, num_bytes=1) for text in ("wait", "crash", "left")]
    work.gate.set()
    await held
    await asyncio.to_thread(other.is_waiting.wait, 20)
    together[2].cancel()
    other.gate.set()
    await asyncio.wait(together)
    assert other.calls == [["wait", "crash", "left"], ["wait"], ["crash"]]


async def test_a_full_queue_refuses_with_a_time_to_come_back(work: Recorder) -> None:
    lane = _lane(max_queued_jobs=1)
    held = await _hold(lane, work)
    waiting = lane.submit(work, "a", num_bytes=1)
    with pytest.raises(OverloadedError, match="1 texts of 1 bytes wait in lane 'test'") as refusal:
        lane.submit(work, "b", num_bytes=1)
    assert refusal.value.retry_after_s == 1.0
    work.gate.set()
    await asyncio.wait([held, waiting])
    await lane.aclose(timeout_s=10)


async def test_a_text_that_could_never_be_queued_is_too_large(lane: Lane, work: Recorder) -> None:
    with pytest.raises(PayloadTooLargeError):
        lane.submit(work, "huge", num_bytes=1001)


async def test_closing_fails_whoever_waits_at_once_each_with_an_own_error(work: Recorder) -> None:
    lane = _lane()
    held = await _hold(lane, work)
    waiting = lane.submit(work, "a", num_bytes=1)
    closing = asyncio.create_task(lane.aclose(timeout_s=10))
    results = await asyncio.gather(held, waiting, return_exceptions=True)
    assert [type(result) for result in results] == [OverloadedError, OverloadedError]
    assert results[0] is not results[1]
    work.gate.set()
    await closing
    assert lane.statistics().num_threads == 0


async def test_a_closed_lane_refuses_and_may_be_closed_again(work: Recorder) -> None:
    lane = _lane()
    await lane.submit(work, "a", num_bytes=1)
    await lane.aclose(timeout_s=10)
    await lane.aclose(timeout_s=10)
    with pytest.raises(OverloadedError, match="closed"):
        lane.submit(work, "b", num_bytes=1)


async def test_a_thread_that_hangs_is_left_behind_with_a_warning(
    work: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    lane = _lane()
    held = await _hold(lane, work)
    await lane.aclose(timeout_s=0.01)
    # asyncio may log of futures that earlier tests left behind, whenever the garbage collector finds them
    records = [record for record in caplog.records if record.name == "headrace.tokenization.lanes"]
    assert [record.levelno for record in records] == [logging.WARNING]
    assert "headrace-test-0 is still inside a call" in caplog.text
    assert isinstance(held.exception(), OverloadedError)
    work.gate.set()
    await lane.aclose(timeout_s=10)
    assert lane.statistics().num_threads == 0


async def test_every_thread_is_warmed_once_before_its_first_job(work: Recorder) -> None:
    lane = _lane(num_threads=3)
    all_warm = threading.Barrier(4, timeout=20)
    lane.warm_up(all_warm.wait)
    await asyncio.to_thread(all_warm.wait)
    assert (await lane.submit(work, "a", num_bytes=1)).value == "A"
    await lane.aclose(timeout_s=10)


async def test_a_warm_up_may_wait_for_the_first_job_which_comes_after_it(work: Recorder) -> None:
    lane = _lane(num_threads=1)
    seen: list[str] = []
    lane.warm_up(lambda: seen.append("warm"), starts=False)
    assert lane.statistics().num_threads == 0
    assert (await lane.submit(work, "a", num_bytes=1)).value == "A"
    assert seen == ["warm"]
    await lane.aclose(timeout_s=10)


async def test_a_warm_up_that_fails_is_logged_and_the_lane_works(
    lane: Lane, work: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise PanicError("cold")

    lane.warm_up(fail)
    assert (await lane.submit(work, "a", num_bytes=1)).value == "A"
    assert "warming up" in caplog.text


def test_results_for_a_loop_that_has_closed_are_dropped_and_the_thread_lives_on(work: Recorder) -> None:
    lane = _lane()

    async def leave_work_behind() -> None:
        await _hold(lane, work)

    asyncio.run(leave_work_behind())
    work.gate.set()

    async def use_again() -> str:
        value = (await lane.submit(work, "again", num_bytes=1)).value
        await lane.aclose(timeout_s=10)
        return value

    assert asyncio.run(use_again()) == "AGAIN"
