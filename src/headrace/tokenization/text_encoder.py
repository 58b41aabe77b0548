"""The way of one text to its ids: kept -> resumed -> in place when short -> flight -> lane, process or local fallback.

Belongs to one event loop at a time. Knows nothing of chats, nor of how tokenizers are loaded and admitted.
"""

import asyncio
from functools import partial
from time import perf_counter

import msgspec

from headrace.aio.single_flight import SingleFlight
from headrace.aio.stall import LoopSections
from headrace.tokenization.content import SYSTEM
from headrace.tokenization.deferred import is_at_hand
from headrace.tokenization.in_place import InPlace
from headrace.tokenization.instruments import Instruments
from headrace.tokenization.lanes import Finished, Lane
from headrace.tokenization.local_fallback import Declined, LocalFallback
from headrace.tokenization.model_encoder import ModelEncoder
from headrace.tokenization.processes.lane import ProcessLane
from headrace.tokenization.processes.poison import refusal
from headrace.tokenization.prompt import Encoded, Saturated, text_num_bytes
from headrace.tokenization.records import Namespace, Records, Resume
from headrace.tokenization.segments import MIN_CUT_CHARS
from headrace.tokenization.settings import TokenizationSettings
from headrace.tokenization.tokenizer import TokenIds
from headrace.tokenization.verify import Verifier
from headrace.tokenization.works import EncodedText, EncodeTexts, TextJob

SECTION = "tokenization"
"""The name under which the time is noted that encoding held the event loop."""

_MAX_SHARED_CHARS = 256 * 1024
"""Equal texts up to this length are encoded once; comparing longer ones would hold the event loop."""

_MAX_UNKEPT_CHARS = MIN_CUT_CHARS
"""Texts up to this length, which cannot be resumed, are not kept where the encoder is accelerated: to keep every one
costs more than to encode again those that come again, and the cache is left to the long ones."""

_MAX_WAITING_CHARS = 4096
"""Texts up to this length may wait for a round of the loop that has room for them."""

_Flight = asyncio.Future[Finished[EncodedText]]


class TextEncoder:
    """Encodes texts by what is cheapest and exact. The lanes belong to the service, which closes them."""

    def __init__(
        self,
        settings: TokenizationSettings,
        *,
        short: Lane,
        bulk: Lane,
        processes: ProcessLane,
        fallback: LocalFallback,
        verifier: Verifier,
        instruments: Instruments,
        sections: LoopSections,
    ) -> None:
        """`sections` is told how long encoding held the event loop."""
        self._settings = settings
        self._short = short
        self._bulk = bulk
        self._processes = processes
        self._fallback = fallback
        self._verifier = verifier
        self._instruments = instruments
        self._sections = sections
        self._in_place = self._make_in_place()
        self._tallies: dict[str, _Tally] = {}
        self._flights: SingleFlight[tuple[Namespace, str], Finished[EncodedText]] = SingleFlight()
        self.records = Records(
            max_bytes=settings.cache_max_bytes,
            max_entries=settings.cache_max_entries,
            max_whole_text=settings.cache_max_text if settings.is_cache_on else 0,
            max_resumed_text=settings.resume_max_text if settings.is_resuming else 0,
        )

    def follow_loop(self) -> None:
        """The program goes on in another event loop, since the last one was closed."""
        self._flights = SingleFlight()
        self._in_place = self._make_in_place()

    def _make_in_place(self) -> InPlace:
        settings = self._settings
        return InPlace(
            budget_s=settings.loop_budget_s, max_chars=settings.in_place_max_chars, on_round_end=self._write_tallies
        )

    @property
    def num_flights(self) -> int:
        return len(self._flights)

    def lane_for(self, num_bytes: int) -> Lane:
        return self._bulk if num_bytes > self._settings.bulk_threshold else self._short

    async def encode(
        self, text: str, encoder: ModelEncoder, *, model: str, add_special_tokens: bool, can_bail: bool
    ) -> Encoded | Saturated:
        """The ids of `text`. Raises what lanes and tokenizers raise; a cancelled caller frees its place."""
        if self._processes.is_poison(encoder.reference, text):
            raise refusal(encoder.reference.fingerprint, text)
        num_chars = len(text)
        if num_chars <= _MAX_UNKEPT_CHARS and encoder.is_accelerated and await self._in_place.turn(num_chars):
            at_once = self.encode_at_once(text, encoder, model, add_special_tokens, None, 0)
            if at_once is not None:
                return at_once
        namespace = encoder.namespace(add_special_tokens=add_special_tokens)
        token_ids = self.records.get(namespace, text) if encoder.is_keeping and self._settings.is_cache_on else None
        if token_ids is not None:
            self._instruments.looked_up(model=model, result="hit")
            if self._verifier.is_due():
                self._verifier.consider(model, encoder, text, token_ids, add_special_tokens=add_special_tokens)
            return Encoded(token_ids, "cache", 0.0, 0.0)
        resume = self.records.resume(namespace, text) if encoder.is_keeping and encoder.rules else None
        ask = _Ask(text, encoder, model, namespace, encoder.work(add_special_tokens=add_special_tokens), resume)
        if encoder.is_accelerated and await self._may_encode_in_place(ask.num_new_chars):
            return self._encode_in_place(ask)
        return await self._encode_elsewhere(ask, can_bail=can_bail)

    def encode_at_once(
        self,
        text: str,
        encoder: ModelEncoder,
        model: str,
        add_special_tokens: bool,
        content: str | None,
        num_system_chars: int,
    ) -> Encoded | None:
        """What `encode` gives where that needs no waiting, no cache and no thread; else None.

        The characters of the prompt are counted as `content`, but for so many of its system message; None: somebody
        else counts them. Positional, and all in one piece: a prompt of a few tokens takes no longer than two calls with
        keywords.
        """
        num_chars = len(text)
        encode_one = encoder.encode_one
        if encode_one is None or num_chars > _MAX_UNKEPT_CHARS or not self._in_place.fits(num_chars):
            return None
        if self._processes.has_suspects and self._processes.is_poison(encoder.reference, text):
            return None
        begun_s = perf_counter()
        token_ids = encode_one(text, add_special_tokens)
        took_s = perf_counter() - begun_s
        tally = self._spend(num_chars, model, took_s)
        if content is not None:
            num_system_chars = min(num_system_chars, num_chars)
            tally.num_system_chars += num_system_chars
            tally.num_chars[content] = tally.num_chars.get(content, 0) + num_chars - num_system_chars
        if self._verifier.is_due():
            self._verifier.consider(model, encoder, text, token_ids, add_special_tokens=add_special_tokens)
        return Encoded(token_ids, "in_place", 0.0, took_s)

    def has_room(self, num_chars: int, encoder: ModelEncoder) -> bool:
        """Whether `encode_at_once` would take a text of that length now."""
        return encoder.encode_one is not None and num_chars <= _MAX_UNKEPT_CHARS and self._in_place.fits(num_chars)

    async def _may_encode_in_place(self, num_chars: int) -> bool:
        """A short text waits for its turn, a longer one is in a thread by then."""
        return self._in_place.fits(num_chars) or (
            num_chars <= _MAX_WAITING_CHARS and await self._in_place.turn(num_chars)
        )

    def _encode_in_place(self, ask: "_Ask") -> Encoded:
        begun_s = perf_counter()
        [encoded] = ask.work.run((ask.job(),))
        took_s = perf_counter() - begun_s
        self._spend(ask.num_new_chars, ask.model, took_s)
        self._keep(ask, encoded)
        return Encoded(encoded.token_ids, "in_place", 0.0, took_s, ask.start)

    def _spend(self, num_chars: int, model: str, took_s: float) -> "_Tally":
        self._in_place.spend(num_chars, took_s=took_s)
        tally = self._tallies.get(model)
        if tally is None:
            tally = self._tallies[model] = _Tally()
        tally.num_texts += 1
        tally.took_s += took_s
        return tally

    def _write_tallies(self) -> None:
        self._sections.note(SECTION, sum(tally.took_s for tally in self._tallies.values()))
        for model, tally in self._tallies.items():
            self._instruments.encoded_in_place(
                model=model,
                num_texts=tally.num_texts,
                num_chars={SYSTEM: tally.num_system_chars, **tally.num_chars},
                encode_s=tally.took_s,
            )
        self._tallies.clear()

    async def _encode_elsewhere(self, ask: "_Ask", *, can_bail: bool) -> Encoded | Saturated:
        num_bytes = text_num_bytes(ask.text if not ask.start else ask.text[ask.start :])
        lane = self.lane_for(num_bytes)
        key = (ask.namespace, ask.text)
        is_shared = len(ask.text) <= _MAX_SHARED_CHARS
        is_in_flight = is_shared and self._flights.is_in_flight(key)
        self._instruments.looked_up(model=ask.model, result="flight" if is_in_flight else "miss")
        source = "flight" if is_in_flight else lane.name
        if not is_in_flight and self._is_saturated(lane, num_bytes):
            helped = await self._encode_when_saturated(ask, num_bytes)
            if helped is not None:
                return helped
            if can_bail:
                queue = lane.statistics()
                return Saturated(lane.name, queue.num_queued, queue.num_queued_bytes)
        if is_shared:
            finished = await self._flights.join(key, partial(self._start, lane, ask, num_bytes))
        else:
            finished = await self._start(lane, ask, num_bytes)
        return Encoded(finished.value.token_ids, source, finished.queue_wait_s, finished.run_s, ask.start)

    def _is_saturated(self, lane: Lane, num_bytes: int) -> bool:
        is_full = len(lane) >= self._settings.max_queued_jobs
        return is_full or (lane.num_queued_bytes + num_bytes > self._settings.saturation_bytes and len(lane) > 0)

    async def _encode_when_saturated(self, ask: "_Ask", num_bytes: int) -> Encoded | None:
        """By other cores, or here if it is short; None when neither takes it."""
        work = ask.work
        if self._processes.takes(work.tokenizer, num_bytes=num_bytes) and self._processes.has_free_process():
            future = self._processes.submit(work, ask.text, num_bytes=num_bytes)
            return self._helped(ask, await future, source=self._processes.name)
        if not is_at_hand(work.tokenizer):
            return None  # making it would hold the loop
        adds = work.add_special_tokens
        done = self._fallback.encode(work.tokenizer, ask.text, num_bytes=num_bytes, add_special_tokens=adds)
        if isinstance(done, Declined):
            return None
        self._sections.note(SECTION, done.run_s)
        return self._helped(ask, done, source="local")

    def _helped(self, ask: "_Ask", finished: Finished[TokenIds], *, source: str) -> Encoded:
        self._instruments.encoded(
            model=ask.model, lane=source, queue_wait_s=finished.queue_wait_s, encode_s=finished.run_s
        )
        self._keep(ask, EncodedText(finished.value))
        return Encoded(finished.value, source, finished.queue_wait_s, finished.run_s)

    def _start(self, lane: Lane, ask: "_Ask", num_bytes: int) -> _Flight:
        future = lane.submit(ask.work, ask.job(), num_bytes=num_bytes)
        future.add_done_callback(partial(self._finish, lane, ask))
        return future

    def _finish(self, lane: Lane, ask: "_Ask", future: _Flight) -> None:
        if future.cancelled() or future.exception() is not None:
            return
        finished = future.result()
        self._instruments.encoded(
            model=ask.model, lane=lane.name, queue_wait_s=finished.queue_wait_s, encode_s=finished.run_s
        )
        self._keep(ask, finished.value)

    def _keep(self, ask: "_Ask", encoded: EncodedText) -> None:
        encoder = ask.encoder
        adds = ask.work.add_special_tokens
        if encoder.namespace(add_special_tokens=adds) != ask.namespace:
            return  # a shortcut was found wrong meanwhile
        if encoder.is_keeping:
            self.records.put(ask.namespace, ask.text, encoded, resumed=ask.resume)
        if (encoder.is_accelerated or ask.start) and self._verifier.is_due():
            self._verifier.consider(ask.model, encoder, ask.text, encoded.token_ids, add_special_tokens=adds)


class _Tally(msgspec.Struct):
    """What was encoded in place for a model in one round of the loop."""

    num_texts: int = 0
    num_system_chars: int = 0
    num_chars: dict[str, int] = {}
    """By content."""
    took_s: float = 0.0


class _Ask:
    """A text that is asked for, and what is known of it."""

    __slots__ = ("encoder", "model", "namespace", "resume", "start", "text", "work")

    def __init__(
        self,
        text: str,
        encoder: ModelEncoder,
        model: str,
        namespace: Namespace,
        work: EncodeTexts,
        resume: Resume | None,
    ) -> None:
        self.text = text
        self.encoder = encoder
        self.model = model
        self.namespace = namespace
        self.work = work
        self.resume = resume
        self.start = 0 if resume is None else resume.start

    @property
    def num_new_chars(self) -> int:
        return len(self.text) - self.start

    def job(self) -> TextJob:
        if self.resume is None:
            return TextJob(self.text)
        return TextJob(self.text, self.resume.start, self.resume.token_ids, self.resume.cuts)
