"""One request to a pool, from endpoint to endpoint. Knows nothing of what happens when none answers."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from headrace.errors import HeadraceError, OverloadedError, UnsupportedError, UpstreamError
from headrace.tokenization.remote.attempts import pause_before_the_same_s, with_retries
from headrace.tokenization.remote.fallback import RemoteUnavailableError
from headrace.tokenization.remote.instruments import RemoteInstruments
from headrace.tokenization.remote.members import PoolMembers
from headrace.tokenization.remote.retry import RetryPolicy
from headrace.tokenization.remote.tokenizer import RemoteTokenizer
from headrace.tokenization.remote.transport import RemoteClosedError

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked(Generic[ResultT]):
    """What an endpoint gave, and what it took: `wait_s` is the time before the good attempt."""

    result: ResultT
    tokenizer: RemoteTokenizer
    wait_s: float
    ask_s: float


class RemoteCall(Generic[ResultT]):
    """Asks one endpoint after another until one answers, or nothing is left to try, or no time."""

    def __init__(
        self,
        ask: Callable[[RemoteTokenizer, float], Awaitable[ResultT]],
        *,
        model: str,
        members: PoolMembers,
        policy: RetryPolicy,
        instruments: RemoteInstruments,
    ) -> None:
        """`ask` makes one attempt at a tokenizer, with the deadline by the loop's clock."""
        self._ask = ask
        self._model = model
        self._members = members
        self._policy = policy
        self._instruments = instruments
        self._tried: set[str] = set()
        self._last_failure: HeadraceError | None = None
        self._begun_s = 0.0

    async def run(self, *, timeout_s: float) -> Asked[ResultT]:
        """The first good answer. Raises what the last attempt raised, or RemoteUnavailableError if there was none."""
        self._begun_s = asyncio.get_running_loop().time()
        try:
            return await with_retries(
                self._attempt,
                timeout_s=timeout_s,
                pause_s=self._pause_s,
                on_retry=lambda: self._instruments.retried(model=self._model),
            )
        except RemoteUnavailableError:
            if self._last_failure is None:
                raise
            raise self._last_failure from None

    async def _attempt(self, deadline_s: float) -> Asked[ResultT]:
        loop = asyncio.get_running_loop()
        choosing_s = loop.time()
        with self._members.lease(self._model, tried=self._tried) as entry:
            self._tried.add(entry.key.url)
            asked_s = loop.time()
            self._instruments.chosen(model=self._model, latency_s=asked_s - choosing_s)
            try:
                result = await self._ask(entry.tokenizer, deadline_s)
            except HeadraceError as error:
                self._last_failure = error
                raise
        return Asked(
            result=result,
            tokenizer=entry.tokenizer,
            wait_s=asked_s - self._begun_s,
            ask_s=loop.time() - asked_s,
        )

    def _pause_s(self, error: HeadraceError, num_failures: int, time_left_s: float) -> float | None:
        """How long to wait after `error`; None: it is the end."""
        is_theirs = isinstance(error, UpstreamError | OverloadedError | UnsupportedError)
        if not is_theirs or isinstance(error, RemoteUnavailableError | RemoteClosedError):
            return None
        if not self._members.can_serve(self._model):
            return None
        if self._members.has_untried(self._model, tried=self._tried):
            return self._policy.pause_before_another_s(num_failures=num_failures, time_left_s=time_left_s)
        return pause_before_the_same_s(self._policy, error, num_failures, time_left_s)
