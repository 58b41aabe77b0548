"""The one door of tokenization: prompts in, token ids out, and the event loop is never held.

A prompt goes render (chats) -> cache -> flight (somebody encodes the same text now) -> lane. One service serves one
event loop; its parts know nothing of each other.
"""

import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from prometheus_client import CollectorRegistry

from headrace.aio.bridge import make_async
from headrace.aio.single_flight import SingleFlight
from headrace.errors import InvalidRequestError, ModelNotFoundError
from headrace.tokenization.cache import CacheStatistics, SegmentedCache
from headrace.tokenization.chat_messages import num_text_chars
from headrace.tokenization.instruments import Instruments
from headrace.tokenization.lanes import Finished, Lane, LaneStatistics
from headrace.tokenization.load import load_tokenizer
from headrace.tokenization.prompt import ChatPrompt, Encoded, text_num_bytes
from headrace.tokenization.settings import TokenizationSettings
from headrace.tokenization.tokenizer import TokenIds, Tokenizer
from headrace.tokenization.works import EncodeTexts, MakeTexts

_MAX_SHARED_CHARS = 256 * 1024
"""Equal texts up to this length are encoded once; comparing longer ones would hold the event loop."""

_MAX_INLINE_TOKENS = 512
"""Decoding this many tokens takes the event loop about 0.1 ms, less than handing them to a thread and back."""

_ENTRY_NUM_BYTES = 400
"""Memory of a cache entry beside its text and ids: key, entry, array object, dictionary slot."""

_TextKey = tuple[str, bool, str]
"""Fingerprint of the tokenizer, whether special tokens are added, text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizationStatistics:
    """The service at one moment."""

    num_models: int
    num_flights: int
    lanes: tuple[LaneStatistics, ...]
    cache: CacheStatistics


class TokenizationService:
    """Encodes and decodes for every model that was registered. Use it from one event loop.

    An asynchronous context manager. Threads start with the first tokenizer and end with `aclose`.
    """

    def __init__(
        self, settings: TokenizationSettings | None = None, *, registry: CollectorRegistry | None = None
    ) -> None:
        """Metrics go to `registry`, which holds those of one service; None: a registry of its own."""
        self._settings = settings or TokenizationSettings()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tokenizers: dict[str, Tokenizer] = {}
        self._short = self._lane("short", num_threads=self._settings.num_threads or _default_num_threads())
        self._bulk = self._lane("bulk", num_threads=self._settings.num_bulk_threads)
        self._flights: SingleFlight[_TextKey, Finished[TokenIds]] = SingleFlight()
        self._cache: SegmentedCache[_TextKey, TokenIds] = SegmentedCache(
            max_bytes=self._settings.cache_max_bytes, max_entries=self._settings.cache_max_entries
        )
        self._instruments = Instruments(registry or CollectorRegistry())
        self._instruments.read_cache_bytes(lambda: self._cache.statistics().num_bytes)
        for lane in (self._short, self._bulk):
            self._instruments.read_queue_depth(lane.name, lane.__len__)

    def _lane(self, name: str, *, num_threads: int) -> Lane:
        return Lane(
            name,
            num_threads=num_threads,
            max_queued_jobs=self._settings.max_queued_jobs,
            max_queued_bytes=self._settings.max_queued_bytes,
            batch_max_bytes=self._settings.batch_max_bytes,
            ageing_bytes_per_s=self._settings.ageing_bytes_per_s,
        )

    def register(self, model: str, tokenizer: Tokenizer) -> None:
        """Serve `model` with `tokenizer` from now on, in place of the one before. Every thread is warmed with it."""
        warm_up = partial(tokenizer.encode_batch, ["warm-up"], add_special_tokens=False)
        self._short.warm_up(warm_up)
        self._bulk.warm_up(warm_up)
        self._tokenizers[model] = tokenizer

    async def load(self, model: str, path: str | Path) -> Tokenizer:
        """Load the tokenizer in `path` in a thread and register it. Raises TokenizationError naming the path."""
        tokenizer = await make_async(load_tokenizer)(path)
        self.register(model, tokenizer)
        return tokenizer

    def tokenizer(self, model: str) -> Tokenizer:
        """The tokenizer of `model`. Raises ModelNotFoundError."""
        try:
            return self._tokenizers[model]
        except KeyError:
            known = ", ".join(sorted(self._tokenizers)) or "none"
            raise ModelNotFoundError(
                f"the model {model!r} does not exist; models here: {known}", param="model"
            ) from None

    async def encode(self, prompt: str | ChatPrompt, *, model: str, add_special_tokens: bool = True) -> Encoded:
        """The token ids of `prompt`, exactly as the reference tokenizer gives them.

        Raises ModelNotFoundError, InvalidRequestError (not valid Unicode; the chat template refuses), OverloadedError
        (queue full, service closed), PayloadTooLargeError, TokenizationError. A cancelled caller frees its place.
        """
        self._bind_loop()
        tokenizer = self.tokenizer(model)
        if isinstance(prompt, ChatPrompt):
            text, add_special_tokens = await self._render(prompt, tokenizer), False
        else:
            text = prompt
        num_bytes = text_num_bytes(text)
        if len(text) > _MAX_SHARED_CHARS:
            lane = self._lane_for(num_bytes)
            finished = await self._start(lane, text, num_bytes, EncodeTexts(tokenizer, add_special_tokens), model)
            return Encoded(finished.value, lane.name, finished.queue_wait_s, finished.run_s)
        return await self._encode_shared(text, num_bytes, EncodeTexts(tokenizer, add_special_tokens), model)

    async def _encode_shared(self, text: str, num_bytes: int, work: EncodeTexts, model: str) -> Encoded:
        """Through the cache and the flights."""
        key = (work.tokenizer.fingerprint, work.add_special_tokens, text)
        is_cacheable = self._settings.is_cache_on and num_bytes <= self._settings.cache_max_text
        if is_cacheable and (token_ids := self._cache.get(key)) is not None:
            self._instruments.looked_up(model=model, result="hit")
            return Encoded(token_ids, "cache", 0.0, 0.0)
        lane = self._lane_for(num_bytes)
        source = "flight" if self._flights.is_in_flight(key) else lane.name
        self._instruments.looked_up(model=model, result="flight" if source == "flight" else "miss")

        def start() -> asyncio.Future[Finished[TokenIds]]:
            future = self._start(lane, text, num_bytes, work, model)
            if is_cacheable:
                future.add_done_callback(partial(self._keep, key))
            return future

        finished = await self._flights.join(key, start)
        return Encoded(finished.value, source, finished.queue_wait_s, finished.run_s)

    def _start(
        self, lane: Lane, text: str, num_bytes: int, work: EncodeTexts, model: str
    ) -> asyncio.Future[Finished[TokenIds]]:
        future = lane.submit(work, text, num_bytes=num_bytes)
        future.add_done_callback(partial(self._observe, model, lane.name))
        return future

    def _observe(self, model: str, lane: str, future: asyncio.Future[Finished[TokenIds]]) -> None:
        if not future.cancelled() and future.exception() is None:
            finished = future.result()
            self._instruments.encoded(
                model=model, lane=lane, queue_wait_s=finished.queue_wait_s, encode_s=finished.run_s
            )

    def _keep(self, key: _TextKey, future: asyncio.Future[Finished[TokenIds]]) -> None:
        if not future.cancelled() and future.exception() is None:
            token_ids = future.result().value
            self._cache.put(key, token_ids, num_bytes=sys.getsizeof(key[2]) + token_ids.nbytes + _ENTRY_NUM_BYTES)

    def _bind_loop(self) -> None:
        """Flights belong to one loop; when that has closed, another may follow it."""
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        if self._loop is not None and not self._loop.is_closed():
            raise RuntimeError(f"{self!r} serves another event loop; make one service for each loop")
        self._loop = loop
        self._flights = SingleFlight()

    def _lane_for(self, num_bytes: int) -> Lane:
        return self._bulk if num_bytes > self._settings.bulk_threshold else self._short

    async def _render(self, prompt: ChatPrompt, tokenizer: Tokenizer) -> str:
        template = tokenizer.chat_template
        if template is None:
            raise InvalidRequestError(
                f"the tokenizer {tokenizer.name} has no chat template; use /v1/completions", param="messages"
            )
        render = partial(
            template.render,
            prompt.messages,
            tools=prompt.tools,
            add_generation_prompt=prompt.add_generation_prompt,
            continue_final_message=prompt.continue_final_message,
            template_kwargs=prompt.template_kwargs,
        )
        num_chars = num_text_chars([*prompt.messages, *(prompt.tools or ()), prompt.template_kwargs or {}])
        if num_chars <= self._settings.render_threshold:
            return render()
        return (await self._lane_for(num_chars).submit(MakeTexts(), render, num_bytes=num_chars)).value

    async def decode(
        self, token_ids: Sequence[int] | TokenIds, *, model: str, skip_special_tokens: bool = False
    ) -> str:
        """The text of `token_ids`. Raises as `encode` does."""
        decode = partial(self.tokenizer(model).decode, token_ids, skip_special_tokens=skip_special_tokens)
        if len(token_ids) <= _MAX_INLINE_TOKENS:
            return decode()
        num_bytes = 4 * len(token_ids)
        return (await self._lane_for(num_bytes).submit(MakeTexts(), decode, num_bytes=num_bytes)).value

    def statistics(self) -> TokenizationStatistics:
        return TokenizationStatistics(
            num_models=len(self._tokenizers),
            num_flights=len(self._flights),
            lanes=(self._short.statistics(), self._bulk.statistics()),
            cache=self._cache.statistics(),
        )

    async def aclose(self) -> None:
        """End the threads; everybody who waits gets OverloadedError. Idempotent. Encoding after it is refused alike."""
        self._short.close()
        self._bulk.close()
        await self._short.aclose(timeout_s=self._settings.close_timeout_s)
        await self._bulk.aclose(timeout_s=self._settings.close_timeout_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        models = ", ".join(sorted(self._tokenizers)) or "no models"
        return f"TokenizationService({models}; short={self._short!r}, bulk={self._bulk!r})"


def _default_num_threads() -> int:
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(4, num_cores // 2))
