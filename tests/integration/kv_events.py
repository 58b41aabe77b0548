"""Waiting for what engines in other processes publish of their caches."""

import asyncio
from collections.abc import Callable

from headrace.gateway.app import Gateway
from headrace.gateway.kv_events.subscription import _replayed

_DEADLINE_S = 20.0


async def wait_for(is_so: Callable[[], bool]) -> None:
    """For what comes from other processes."""
    async with asyncio.timeout(_DEADLINE_S):
        while not is_so():
            await asyncio.sleep(0.01)


async def caught_up(gateway: Gateway) -> None:
    """Wait until the gateway has applied all that the engines have published so far."""
    monitor = gateway.routing._monitor
    assert monitor is not None
    for followed in monitor._followed.values():
        for subscription, _ in followed.values():
            source, sequence = subscription.source, subscription._sequence
            assert source.replay is not None
            assert monitor._context is not None
            replayed = _replayed(monitor._context, source.replay, sequence.next_number, timeout_s=10.0)
            messages = [one.number async for one in replayed]
            await wait_for(lambda of=sequence, numbers=messages: of.next_number > max(numbers, default=-1))
