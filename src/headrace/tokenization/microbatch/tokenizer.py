"""vLLM's `AsyncMicrobatchTokenizer`: awaitable calls of a tokenizer, many in one trip to a worker thread.

A thread takes all that queued while its last call ran, so nobody waits for a batch to fill. Within a trip every prompt
is a call of its own: it gets exactly what the tokenizer gives for it alone, and fails alone. Only our own tokenizers,
whose results are known not to depend on each other, take a trip's prompts in one call. Short prompts for an accelerated
one are encoded in the loop, about a millisecond in each of its rounds: that takes less than a trip.
"""

import asyncio
import threading
import weakref
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass
from time import perf_counter
from types import TracebackType
from typing import Any, Self

from headrace.tokenization.fastokens_tokenizer import FastokensTokenizer
from headrace.tokenization.in_place import InPlace
from headrace.tokenization.lanes import Lane, LaneStatistics
from headrace.tokenization.microbatch.callables import (
    CallableTokenizer,
    EncodedPrompt,
    OursAsCallable,
    for_one_thread,
    tokenizer_error,
)
from headrace.tokenization.microbatch.desk import Desk
from headrace.tokenization.tokenizer import Tokenizer

__all__ = ["AsyncMicrobatchTokenizer", "EncodedPrompt", "MicrobatchStatistics"]

_LONG_BYTES = 64 * 1024
"""Longer prompts have a thread, and a copy of the tokenizer, of their own."""
_IN_PLACE_CHARS = 4096
_LOOP_BUDGET_S = 0.001
_CLOSE_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MicrobatchStatistics:
    """Each lane at one moment: the one for ordinary prompts, the one for long ones."""

    short: LaneStatistics
    long: LaneStatistics


class AsyncMicrobatchTokenizer:
    """Calls `tokenizer` in worker threads, whichever loop awaits: `await t(prompt, **kwargs)`, `await t.decode(ids)`.

    The result, and an exception of the tokenizer's, is what the same call gives when it is made alone, whatever the
    load. Requests share a trip only with requests whose every keyword is equal. A cancelled request that has not begun
    is never made. Close it with `aclose`; dropped unclosed, it ends its threads when it is collected.
    """

    def __init__(
        self,
        tokenizer: CallableTokenizer | Tokenizer,
        max_batch_size: int = 32,
        batch_wait_timeout_s: float = 0.002,
        *,
        max_queued_prompts: int = 65_536,
        max_queued_bytes: int = 256 * 1024 * 1024,
    ) -> None:
        """`tokenizer`: a Hugging Face tokenizer or anything with its call and `decode`, or one of our `Tokenizer`s.

        `batch_wait_timeout_s` is an upper bound of an idle wait that is always zero; it is checked and else unused.
        Beyond `max_queued_prompts` or `max_queued_bytes` requests are refused with OverloadedError. Hugging Face's
        fast tokenizers keep the truncation and padding of the last call in themselves: they are copied, once for each
        thread and off the loop, so that your own use of `tokenizer` and ours never meet. Any other object is used
        itself, one call at a time. Raises ValueError for a bound out of range.
        """
        for name, value, least in (
            ("max_batch_size", max_batch_size, 1),
            ("batch_wait_timeout_s", batch_wait_timeout_s, 0),
            ("max_queued_prompts", max_queued_prompts, 1),
            ("max_queued_bytes", max_queued_bytes, 1),
        ):
            if value < least:
                raise ValueError(f"{name} is {value}; it must be {least} or more")
        self._quick = OursAsCallable(tokenizer) if isinstance(tokenizer, FastokensTokenizer) else None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._in_place: InPlace | None = None
        self._lock = lock = threading.Lock()
        self._short, self._long = (
            Desk(
                lambda: for_one_thread(tokenizer, lock),
                name=name,
                max_batch_size=max_batch_size,
                max_queued_prompts=max_queued_prompts,
                max_queued_bytes=max_queued_bytes,
            )
            for name in ("microbatch", "microbatch-long")
        )
        self._finalizer = weakref.finalize(self, _close, (self._short.lane, self._long.lane))

    async def __call__(self, prompt: Any, **kwargs: Any) -> Any:
        """What `tokenizer(prompt, **kwargs)` returns or raises. `prompt` may be whatever the tokenizer takes.

        Raises OverloadedError when too much waits or this is closed.
        """
        if self._quick is not None and isinstance(prompt, str) and self._finalizer.alive:
            place = self._in_place if asyncio.get_running_loop() is self._loop else self._place_in_loop()
            if place is not None and (place.fits(len(prompt)) or await place.turn(len(prompt))):
                return _call_in_place(place, self._quick, prompt, kwargs)
        num_bytes = _num_bytes(prompt)
        return await self._desk_for(num_bytes).submit("__call__", prompt, kwargs, num_bytes=num_bytes)

    def _place_in_loop(self) -> InPlace | None:
        """One loop at a time encodes in place, the first that asks; the others go to the threads."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._loop is None or self._loop.is_closed():
                self._in_place = InPlace(budget_s=_LOOP_BUDGET_S, max_chars=_IN_PLACE_CHARS)
                self._loop = loop
            return self._in_place if self._loop is loop else None

    async def decode(self, token_ids: Any, **kwargs: Any) -> Any:
        """What `tokenizer.decode(token_ids, **kwargs)` returns or raises. Else as a call."""
        num_bytes = _num_bytes(token_ids)
        return await self._desk_for(num_bytes).submit("decode", token_ids, kwargs, num_bytes=num_bytes)

    def _desk_for(self, num_bytes: int) -> Desk:
        return self._long if num_bytes > _LONG_BYTES else self._short

    def statistics(self) -> MicrobatchStatistics:
        return MicrobatchStatistics(short=self._short.lane.statistics(), long=self._long.lane.statistics())

    async def aclose(self) -> None:
        """End the threads; everybody who waits gets OverloadedError, and so does every later call. Idempotent."""
        self._finalizer()
        for desk in (self._short, self._long):
            await desk.lane.aclose(timeout_s=_CLOSE_TIMEOUT_S)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"AsyncMicrobatchTokenizer(short={self._short.lane!r}, long={self._long.lane!r})"


def _call_in_place(place: InPlace, tokenizer: OursAsCallable, prompt: str, kwargs: Mapping[str, Any]) -> Any:
    begun_s = perf_counter()
    try:
        return tokenizer(prompt, **kwargs)
    except BaseException as error:  # noqa: BLE001 - what no future can raise is not raised here either
        raise tokenizer_error(error) from error.__cause__
    finally:
        place.spend(len(prompt), took_s=perf_counter() - begun_s)


def _num_bytes(argument: object) -> int:
    """About how much a call has to do: characters of a text, four for each token, and the sum over a list."""
    if isinstance(argument, str):
        return len(argument)
    if isinstance(argument, list | tuple):
        return sum(_num_bytes(item) for item in argument)
    return 4 * len(argument) if isinstance(argument, Sized) else 4


def _close(lanes: Sequence[Lane]) -> None:
    for lane in lanes:
        lane.close()
