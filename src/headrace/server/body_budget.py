"""Bounds the bytes of request bodies that all unanswered requests hold together, and paces long ones: many that arrive
at once must not hold the event loop together. One body's own bound is elsewhere."""

from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.errors import OverloadedError
from headrace.server.turns import Turns

_RETRY_AFTER_S = 1.0
_LONG_PIECE_BYTES = 64 << 10
"""Pieces of long bodies come in this size or more."""
_LONG_PIECES_PER_ROUND = 1
"""What `benchmarks/health_under_load.py` measured to keep /health quick; each takes about a millisecond."""


@dataclass(frozen=True, slots=True)
class BodyBudgetStatistics:
    num_bytes: int
    """Of requests that have not been answered whole."""
    max_bytes: int


class BodyBudgetMiddleware:
    """Counts bodies as they are received, until their request has ended; one too much makes `receive` raise
    OverloadedError, for whoever reads the body to answer."""

    def __init__(self, app: ASGIApp, *, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._turns = Turns(per_round=_LONG_PIECES_PER_ROUND)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        num_own_bytes = 0

        async def counted_receive() -> Message:
            nonlocal num_own_bytes
            message = await receive()
            num_new_bytes = len(message.get("body", b""))
            self._take(num_new_bytes)
            num_own_bytes += num_new_bytes
            if num_new_bytes >= _LONG_PIECE_BYTES:
                await self._turns.take()  # the connection reads no further meanwhile
            return message

        try:
            await self._app(scope, counted_receive, send)
        finally:
            self._num_bytes -= num_own_bytes

    def statistics(self) -> BodyBudgetStatistics:
        return BodyBudgetStatistics(num_bytes=self._num_bytes, max_bytes=self._max_bytes)

    def __repr__(self) -> str:
        return f"BodyBudgetMiddleware(num_bytes={self._num_bytes}, max_bytes={self._max_bytes})"

    def _take(self, num_bytes: int) -> None:
        if self._num_bytes + num_bytes > self._max_bytes:
            raise OverloadedError(
                f"the bodies of {self._max_bytes} bytes together are being worked on, which is the limit; "
                "try again shortly",
                retry_after_s=_RETRY_AFTER_S,
            )
        self._num_bytes += num_bytes
