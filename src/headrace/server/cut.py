"""Ends a block of code when something happens elsewhere: a client hangs up, the server is told to stop."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from starlette.types import Receive, Scope

from headrace.aio.tasks import TaskOwner
from headrace.server.intake import ClientGoneError
from headrace.server.protocol import CUT_CONNECTION
from headrace.server.serving import LiveRequests

_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class Cut:
    """Whether the block was ended early."""

    happened: bool = False


@contextlib.asynccontextmanager
async def leave_when(event: Callable[[], Awaitable[object]], *, name: str) -> AsyncIterator[Cut]:
    """Cancels the block when what `event` awaits returns, and leaves it quietly; the yielded `Cut` then says so.

    What the block raises goes through, a cancellation from outside as well. The wait for `event` ends with the block.
    """
    cut = Cut()
    async with TaskOwner(name) as owner:
        try:
            async with asyncio.timeout(None) as scope:
                owner.spawn(_expire(scope, after=event), name=name)
                yield cut
        except TimeoutError:
            if not scope.expired():
                raise
            cut.happened = True


async def _expire(scope: asyncio.Timeout, *, after: Callable[[], Awaitable[object]]) -> None:
    await after()
    scope.reschedule(asyncio.get_running_loop().time())


async def disconnected(receive: Receive) -> None:
    """Returns when the client has gone. Call it after the body was read: it swallows what still arrives."""
    while (await receive())["type"] != "http.disconnect":
        pass


@contextlib.asynccontextmanager
async def admitted(live: LiveRequests, scope: Scope, receive: Receive) -> AsyncIterator[None]:
    """Counts a request while the block runs, and ends quietly when the block finds that the client has gone.

    Raises OverloadedError when too many requests run already.
    """
    with live.admit():
        try:
            yield
        except ClientGoneError as gone:
            _LOG.info("a request ended unanswered: %s", gone)
            cut = scope.get("extensions", {}).get(CUT_CONNECTION)
            if cut is not None:  # what it has not read would hold the connection open
                cut["cut"]()
                await disconnected(receive)
