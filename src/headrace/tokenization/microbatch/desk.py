"""Where the calls of a micro-batching tokenizer wait: a lane, and bundles of what one turn of a loop asks for."""

import asyncio
import copy
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

from headrace.errors import HeadraceError, OverloadedError
from headrace.tokenization.lanes import Lane
from headrace.tokenization.microbatch.callables import (
    CallableTokenizer,
    OursAsCallable,
    Outcome,
    Raised,
    Returned,
    attempt,
)
from headrace.tokenization.microbatch.keywords import Keywords

_MAX_CALL_BYTES = 16 * 1024
"""Prompts share a trip up to this size; bounds how long the first waits for the last."""
_AGEING_BYTES_PER_S = 256 * 1024
_NO_KEYWORDS = Keywords({})


class Desk:
    """One lane and the tokenizer that its thread uses.

    What one turn of an event loop asks for goes to the lane in bundles: a bundle costs a queue little more than a
    prompt. Several loops may submit at once; each fills bundles of its own.
    """

    def __init__(
        self,
        make_tokenizer: Callable[[], CallableTokenizer],
        *,
        name: str,
        max_batch_size: int,
        max_queued_prompts: int,
        max_queued_bytes: int,
    ) -> None:
        self._make_tokenizer = make_tokenizer
        self._own: CallableTokenizer | None = None
        self._max_batch_size = max_batch_size
        self._max_queued_prompts = max_queued_prompts
        self._filling: dict[_BundleKey, _Bundle] = {}
        self._lock = threading.Lock()
        self._num_waiting = 0
        # Counting short prompts as longer than they are bounds the prompts of a trip as well as their bytes.
        self._min_bytes = _MAX_CALL_BYTES // max_batch_size
        self.lane = Lane(
            name,
            num_threads=1,
            max_queued_jobs=max_queued_prompts,
            max_queued_bytes=max_queued_bytes,
            batch_max_bytes=_MAX_CALL_BYTES,
            ageing_bytes_per_s=_AGEING_BYTES_PER_S,
        )

    def tokenizer(self) -> CallableTokenizer:
        """Call it in the lane's thread: the first call may copy."""
        if self._own is None:
            self._own = self._make_tokenizer()
        return self._own

    def submit(self, method: str, argument: Any, kwargs: Mapping[str, Any], *, num_bytes: int) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        request = _Request(argument, loop.create_future())
        key = (loop, method, Keywords(kwargs) if kwargs else _NO_KEYWORDS)
        self._take_place()
        bundle = self._filling.get(key)
        num_bytes = max(num_bytes, self._min_bytes)
        if bundle is not None and bundle.num_bytes + num_bytes > _MAX_CALL_BYTES:
            self._send(key, bundle)
            bundle = None
        if bundle is None:
            bundle = self._filling[key] = _Bundle()
            loop.call_soon(self._send, key, bundle)
        bundle.requests.append(request)
        bundle.num_bytes += num_bytes
        if len(bundle.requests) >= self._max_batch_size:
            self._send(key, bundle)
        return request.future

    def _take_place(self) -> None:
        with self._lock:
            if self._num_waiting >= self._max_queued_prompts:
                raise OverloadedError(
                    f"tokenization is overloaded: {self._num_waiting} prompts wait in {self.lane!r}; try again later",
                    retry_after_s=1.0,
                )
            self._num_waiting += 1

    def begin(self, bundle: "_Bundle") -> None:
        """The places of `bundle` are free: it does not wait any more. May be called again, from any thread."""
        with self._lock:
            if bundle.is_waiting:
                bundle.is_waiting = False
                self._num_waiting -= len(bundle.requests)

    def _send(self, key: "_BundleKey", bundle: "_Bundle") -> None:
        if self._filling.get(key) is not bundle:
            return  # it was full before the loop's turn ended
        del self._filling[key]
        _, method, keywords = key
        try:
            job = self.lane.submit(_Calls(self, method, keywords), bundle, num_bytes=bundle.num_bytes)
        except HeadraceError as error:
            self._deliver(bundle, error)
        else:
            job.add_done_callback(lambda job: self._deliver(bundle, job.exception()))

    def _deliver(self, bundle: "_Bundle", error: BaseException | None) -> None:
        self.begin(bundle)
        for request in bundle.requests:
            if request.future.done():
                continue
            outcome = request.outcome if error is None else Raised(copy.copy(error))
            if isinstance(outcome, Returned):
                request.future.set_result(outcome.value)
            elif outcome is not None:
                request.future.set_exception(outcome.error)


_BundleKey: TypeAlias = tuple[asyncio.AbstractEventLoop, str, Keywords]


class _Request(msgspec.Struct, eq=False):
    argument: Any
    future: asyncio.Future[Any]
    outcome: Outcome | None = None


@dataclass(slots=True, eq=False)
class _Bundle:
    """What one turn of a loop asks of one work."""

    requests: list[_Request] = field(default_factory=list)
    num_bytes: int = 0
    is_waiting: bool = True


@dataclass(frozen=True, slots=True)
class _Calls:
    """Calls of one method with equal keywords. Each has its own outcome, so the trip as a whole never fails."""

    desk: Desk
    method: str
    keywords: Keywords

    def run(self, bundles: Sequence[_Bundle]) -> list[None]:
        for bundle in bundles:
            self.desk.begin(bundle)
        requests = [request for bundle in bundles for request in bundle.requests if not request.future.done()]
        if requests:
            outcomes = self._outcomes([request.argument for request in requests])
            for request, outcome in zip(requests, outcomes, strict=True):
                request.outcome = outcome
        return [None] * len(bundles)

    def _outcomes(self, arguments: Sequence[Any]) -> list[Outcome]:
        tokenizer = self.desk.tokenizer()
        if isinstance(tokenizer, OursAsCallable) and self.method == "__call__":
            return tokenizer.call_many(arguments, self.keywords.values)
        call = getattr(tokenizer, self.method)
        return [attempt(call, argument, self.keywords.values) for argument in arguments]
