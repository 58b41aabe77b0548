import asyncio
import contextvars
import inspect
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.aio import cancel_task_threadsafe, in_loop, make_async, run_in_loop

_TENANT: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(max_workers=1) as executor:
        yield executor


async def test_make_async_calls_in_a_thread_of_the_executor(executor: ThreadPoolExecutor) -> None:
    assert await make_async(threading.get_ident, executor)() != threading.get_ident()


async def test_make_async_passes_arguments_and_exceptions(executor: ThreadPoolExecutor) -> None:
    assert await make_async(int, executor)("ff", base=16) == 255
    with pytest.raises(ValueError, match="invalid literal"):
        await make_async(int, executor)("zz", base=16)


async def test_make_async_lets_the_call_see_the_context_variables_of_the_caller(executor: ThreadPoolExecutor) -> None:
    _TENANT.set("acme")
    assert await make_async(_TENANT.get, executor)() == "acme"


async def test_make_async_keeps_name_and_docstring_and_makes_tasks(executor: ThreadPoolExecutor) -> None:
    def encode(text: str) -> int:
        """Counts."""
        return len(text)

    wrapped = make_async(encode, executor)
    assert (wrapped.__name__, wrapped.__doc__) == ("encode", "Counts.")
    assert inspect.iscoroutinefunction(wrapped)
    assert await asyncio.create_task(wrapped("abc")) == 3


async def test_cancelling_takes_a_call_that_has_not_begun_out_of_the_queue(executor: ThreadPoolExecutor) -> None:
    gate, calls = threading.Event(), []
    first = asyncio.create_task(make_async(gate.wait, executor)(10))
    await asyncio.sleep(0)
    second = asyncio.create_task(make_async(calls.append, executor)("second"))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    gate.set()
    await first
    await make_async(calls.append, executor)("third")
    assert calls == ["third"]


async def test_in_loop_is_true_only_in_that_loop_and_its_thread(executor: ThreadPoolExecutor) -> None:
    loop = asyncio.get_running_loop()
    other = asyncio.new_event_loop()
    assert in_loop(loop)
    assert not in_loop(other)
    assert not await make_async(in_loop, executor)(loop)
    other.close()


async def test_run_in_loop_calls_at_once_inside_the_loop() -> None:
    calls: list[int] = []
    run_in_loop(asyncio.get_running_loop(), calls.append, 1)
    assert calls == [1]


async def test_run_in_loop_raises_to_the_caller_inside_the_loop() -> None:
    with pytest.raises(ZeroDivisionError):
        run_in_loop(asyncio.get_running_loop(), lambda: 1 // 0)


async def test_run_in_loop_from_a_thread_calls_in_the_loop(executor: ThreadPoolExecutor) -> None:
    called_in = asyncio.get_running_loop().create_future()
    loop = asyncio.get_running_loop()
    await make_async(run_in_loop, executor)(loop, lambda: called_in.set_result(threading.get_ident()))
    assert await asyncio.wait_for(called_in, 1) == threading.get_ident()


def test_run_in_loop_says_so_when_the_loop_is_closed() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    with pytest.raises(RuntimeError, match="print was not called: its event loop is closed"):
        run_in_loop(loop, print)


def test_run_in_loop_says_so_when_the_loop_closes_between_check_and_call() -> None:
    class ClosesWhenCalled(asyncio.SelectorEventLoop):
        def call_soon_threadsafe(self, *args, **kwargs):  # type: ignore[no-untyped-def, override]
            self.close()
            return super().call_soon_threadsafe(*args, **kwargs)

    with pytest.raises(RuntimeError, match="was not called: its event loop is closed"):
        run_in_loop(ClosesWhenCalled(), print)


async def test_a_task_is_cancelled_from_another_thread(executor: ThreadPoolExecutor) -> None:
    task = asyncio.create_task(asyncio.Event().wait())
    await make_async(cancel_task_threadsafe, executor)(task)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 1)


async def test_cancelling_nothing_or_what_is_done_does_nothing() -> None:
    cancel_task_threadsafe(None)
    task = asyncio.create_task(asyncio.sleep(0, "result"))
    await task
    cancel_task_threadsafe(task)
    assert task.result() == "result"


def test_cancelling_a_task_whose_loop_has_closed_does_nothing() -> None:
    loop = asyncio.new_event_loop()
    task = loop.create_task(asyncio.sleep(0))
    loop.run_until_complete(asyncio.sleep(0))
    loop.run_until_complete(task)
    waiting = loop.create_task(asyncio.sleep(0))
    loop.close()
    cancel_task_threadsafe(waiting)
    assert not waiting.cancelled()
    waiting.get_coro().close()  # type: ignore[union-attr]
    waiting._log_destroy_pending = False  # type: ignore[attr-defined]
