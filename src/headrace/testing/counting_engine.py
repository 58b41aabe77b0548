"""A behaviour of `FakeUpstream` that works as an engine does, fails as a test likes, and keeps its own books.

It takes /v1/completions with a prompt of token ids, as a stream or whole, and has a prefix cache. Two fields of the
body are for tests: with `"stops_after": k` it falls silent after k tokens (0: before it has answered) until its peer
leaves; `"fate"` chooses one for this request.
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from headrace.testing.fake_upstream import DONE, Exchange, head


class Fate(StrEnum):
    """How an engine treats one request."""

    WHOLE = "whole"
    DIES = "dies"
    FAILS = "fails"
    BUSY = "busy"
    REFUSES = "refuses"
    GARBAGE = "garbage"
    BREAKS = "breaks"
    """In the middle of its answer."""


@dataclass(slots=True, kw_only=True)
class Tally:
    """Requests that ended alike."""

    num_requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    """Those that the peer was told of."""


@dataclass(slots=True, kw_only=True)
class Books:
    """What an engine has done."""

    num_received: int = 0
    whole: Tally = field(default_factory=Tally)
    broken: Tally = field(default_factory=Tally)
    """Streams that ended in the middle, by the engine's fault."""
    num_broken_json: int = 0
    """Whole answers that did: who waits for the rest before he passes on any has nothing of them."""
    left: Tally = field(default_factory=Tally)
    """Requests whose peer left."""
    num_failed: int = 0
    """Requests that got no answer of 200."""

    @property
    def num_ended(self) -> int:
        answered = self.whole.num_requests + self.broken.num_requests + self.num_broken_json
        return answered + self.left.num_requests + self.num_failed


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    ids: list[int]
    num_tokens: int
    num_cached: int
    is_stream: bool
    tells_usage: bool
    stops_after: int | None

    def count(self, tally: Tally, *, num_told: int) -> None:
        tally.num_requests += 1
        tally.prompt_tokens += len(self.ids)
        tally.cached_tokens += self.num_cached
        tally.completion_tokens += num_told

    def usage(self) -> dict[str, object]:
        return {
            "prompt_tokens": len(self.ids),
            "completion_tokens": self.num_tokens,
            "total_tokens": len(self.ids) + self.num_tokens,
            "prompt_tokens_details": {"cached_tokens": self.num_cached},
        }


class CountingEngine:
    """See the module. `draw` gives the fate of each request that does not bring its own."""

    def __init__(self, *, draw: Callable[[], Fate] = lambda: Fate.WHOLE, block_size: int = 16) -> None:
        self.books = Books()
        self._draw = draw
        self._block_size = block_size
        self._cache: set[tuple[int, ...]] = set()

    def forget(self) -> None:
        """Lose the cache, as a restart does."""
        self._cache.clear()

    async def __call__(self, exchange: Exchange) -> None:
        body = exchange.request.json()
        self.books.num_received += 1
        work = self._work(body)
        given = body.get("fate")
        fate = self._draw() if given is None else Fate(str(given))
        if work.stops_after is not None:
            await self._stop(exchange, work)
        elif fate is Fate.WHOLE:
            await self._answer(exchange, work)
        elif fate is Fate.BREAKS:
            await self._break(exchange, work)
        else:
            self.books.num_failed += 1
            await _fail(exchange, fate)

    def _work(self, body: dict[str, object]) -> _Work:
        ids, num_tokens, options = body["prompt"], body.get("max_tokens", 4), body.get("stream_options")
        stops_after = body.get("stops_after")
        assert isinstance(ids, list)
        assert isinstance(num_tokens, int)
        assert stops_after is None or isinstance(stops_after, int)
        return _Work(
            ids=ids,
            num_tokens=num_tokens,
            num_cached=self._take_into_cache(ids),
            is_stream=bool(body.get("stream")),
            tells_usage=isinstance(options, dict) and bool(options.get("include_usage")),
            stops_after=stops_after,
        )

    def _take_into_cache(self, ids: list[int]) -> int:
        """How many of `ids` were there; an engine always computes the last one."""
        prefixes = [tuple(ids[:end]) for end in range(self._block_size, len(ids) + 1, self._block_size)]
        num_blocks = next((at for at, prefix in enumerate(prefixes) if prefix not in self._cache), len(prefixes))
        self._cache.update(prefixes)
        return min(num_blocks, (len(ids) - 1) // self._block_size) * self._block_size

    async def _answer(self, exchange: Exchange, work: _Work) -> None:
        work.count(self.books.whole, num_told=work.num_tokens)
        if not work.is_stream:
            await exchange.respond(_whole(work))
            return
        await exchange.start_chunked()
        await self._stream(exchange, work.num_tokens)
        if work.tells_usage:
            await exchange.chunk(_event({"choices": [], "usage": work.usage()}))
        await exchange.chunk(DONE)
        await exchange.chunk(b"")

    async def _break(self, exchange: Exchange, work: _Work) -> None:
        exchange.keeps_alive = False
        if work.is_stream:
            num_told = work.num_tokens // 2
            work.count(self.books.broken, num_told=num_told)
            await exchange.start_chunked()
            await self._stream(exchange, num_told)
        else:
            self.books.num_broken_json += 1
            data = _whole(work)
            await exchange.send(head(200, ["content-type: application/json", f"content-length: {len(data)}"]))
            await exchange.send(data[: len(data) // 2])

    async def _stop(self, exchange: Exchange, work: _Work) -> None:
        assert work.stops_after is not None
        work.count(self.books.left, num_told=work.stops_after)
        if work.stops_after:
            await exchange.start_chunked()
            await self._stream(exchange, work.stops_after)
        await exchange.closed.wait()

    async def _stream(self, exchange: Exchange, num_tokens: int) -> None:
        for number in range(num_tokens):
            await exchange.chunk(_event({"choices": [{"index": 0, "text": f" {number}", "finish_reason": None}]}))
            await asyncio.sleep(0)

    def __repr__(self) -> str:
        return f"CountingEngine(num_received={self.books.num_received}, num_ended={self.books.num_ended})"


async def _fail(exchange: Exchange, fate: Fate) -> None:
    error = b'{"error":{"message":"no"}}'
    if fate is Fate.DIES:
        exchange.die()
    elif fate is Fate.GARBAGE:
        exchange.keeps_alive = False
        await exchange.send(b"\x00garbage\r\n\r\n")
    elif fate is Fate.FAILS:
        await exchange.respond(error, status=500)
    elif fate is Fate.BUSY:
        await exchange.respond(error, status=503, headers=["retry-after: 1"])
    else:
        await exchange.respond(error, status=429, headers=["retry-after: 1"])


def _whole(work: _Work) -> bytes:
    text = "".join(f" {number}" for number in range(work.num_tokens))
    choice = {"index": 0, "text": text, "finish_reason": "length"}
    return json.dumps({**_COMMON, "choices": [choice], "usage": work.usage()}).encode()


def _event(value: dict[str, object]) -> bytes:
    return b"data: " + json.dumps({**_COMMON, **value}).encode() + b"\n\n"


_COMMON = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "demo"}
