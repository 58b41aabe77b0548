"""Small parts of asynchronous programs: owned tasks, bridges to threads, merged iterators, shared work, stall watch."""

from headrace.aio.bridge import cancel_task_threadsafe, in_loop, make_async, run_in_loop
from headrace.aio.merge import collect_from_async_generator, merge_async_iterators
from headrace.aio.tasks import TaskOwner

__all__ = [
    "TaskOwner",
    "cancel_task_threadsafe",
    "collect_from_async_generator",
    "in_loop",
    "make_async",
    "merge_async_iterators",
    "run_in_loop",
]
