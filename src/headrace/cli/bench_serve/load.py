"""The open loop: requests go out when they are due, whether or not earlier ones are answered."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext

from headrace.aio.tasks import TaskOwner
from headrace.cli.bench_serve.client import LoadClient
from headrace.cli.bench_serve.results import RequestResult
from headrace.cli.bench_serve.workloads import Work

_NO_LIMIT: AbstractAsyncContextManager[None] = nullcontext()


async def send_all(
    client: LoadClient,
    work: Sequence[Work],
    times_s: Sequence[float],
    *,
    max_concurrency: int | None,
    on_end: Callable[[], None],
) -> list[RequestResult]:
    """Send each at its time from now on; the results in the order of `work`. Cancelled, it breaks off the rest.

    With `max_concurrency` a request that is due waits for a place, and only then is it sent.
    """
    places = _NO_LIMIT if max_concurrency is None else asyncio.Semaphore(max_concurrency)
    begun_s = time.perf_counter()

    async def send(one: Work, at_s: float) -> RequestResult:
        late_s = time.perf_counter() - begun_s - at_s
        async with places:
            result = await client.send(one, late_s=late_s)
        on_end()
        return result

    async with TaskOwner("requests") as owner:
        tasks = []
        for number, (one, at_s) in enumerate(zip(work, times_s, strict=True)):
            if (wait_s := begun_s + at_s - time.perf_counter()) > 0:
                await asyncio.sleep(wait_s)
            tasks.append(owner.spawn(send(one, at_s), name=f"request {number}"))
        return [await task for task in tasks]
