"""The one door of tokenization: prompts in, token ids out, and the event loop is never held.

The service renders chats, checks limits, and loads and admits tokenizers; `text_encoder` has the way of a text to its
ids. One service serves one event loop.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, overload

from prometheus_client import CollectorRegistry

from headrace.aio.bridge import make_async
from headrace.aio.stall import LoopSections
from headrace.cores import num_cores
from headrace.errors import (
    ContextLengthError,
    InvalidRequestError,
    OverloadedError,
    TokenizationError,
)
from headrace.tokenization.cache import CacheStatistics
from headrace.tokenization.chat_messages import num_text_chars
from headrace.tokenization.content import CONVERSATION, OTHER, count_content, num_system_chars
from headrace.tokenization.deferred import is_at_hand
from headrace.tokenization.examiner.examination import Examiners
from headrace.tokenization.instruments import Instruments
from headrace.tokenization.lanes import Lane, LaneStatistics
from headrace.tokenization.load import load_tokenizer
from headrace.tokenization.local_fallback import LocalFallback, LocalFallbackSettings, LocalFallbackStatistics
from headrace.tokenization.processes.lane import ProcessLane
from headrace.tokenization.processes.settings import ProcessLaneSettings, ProcessLaneStatistics
from headrace.tokenization.prompt import ChatPrompt, Encoded, Saturated, min_num_tokens
from headrace.tokenization.served_models import ServedModels
from headrace.tokenization.settings import TokenizationSettings
from headrace.tokenization.text_encoder import TextEncoder
from headrace.tokenization.tokenizer import TokenIds, Tokenizer
from headrace.tokenization.verify import Verifier
from headrace.tokenization.works import MakeTexts

_MAX_INLINE_TOKENS = 512
"""Decoding this many tokens takes the event loop about 0.1 ms, less than handing them to a thread and back."""

_MESSAGE_CHARS = 1024
_TOOL_CHARS = 8
"""What a template spends on a message, and on a character of a tool that it writes as JSON, in characters that it only
copies (measured with Qwen 2.5's and our demo's: 1 to 4.5 us a message)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizationStatistics:
    """The service at one moment."""

    num_models: int
    num_flights: int
    lanes: tuple[LaneStatistics, ...]
    """The threads for short texts and those for long ones."""
    processes: ProcessLaneStatistics
    local_fallback: LocalFallbackStatistics
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
        self._instruments = Instruments(registry or CollectorRegistry())
        self._short = self._lane("short", num_threads=self._settings.num_threads or _default_num_threads())
        self._bulk = self._lane("bulk", num_threads=self._settings.num_bulk_threads)
        self._upkeep = self._lane("upkeep", num_threads=1)
        self._processes = ProcessLane(_process_settings(self._settings))
        self._fallback = LocalFallback(LocalFallbackSettings(budget_s=self._settings.local_fallback_budget_s))
        self._examiners = Examiners()
        self._models = ServedModels(
            self._settings, lanes=(self._short, self._bulk), upkeep=self._upkeep, examiners=self._examiners
        )
        self._is_closing = False
        self.sections = LoopSections()
        """How long encoding held the event loop: give it to the loop's `LoopStallMonitor`."""
        self._texts = TextEncoder(
            self._settings,
            short=self._short,
            bulk=self._bulk,
            processes=self._processes,
            fallback=self._fallback,
            verifier=self._verifier(),
            instruments=self._instruments,
            sections=self.sections,
        )
        records = self._texts.records
        self._instruments.read_cache(
            num_bytes=lambda: records.statistics().num_bytes,
            num_evictions=lambda: records.statistics().num_evictions,
        )
        for lane in (self._short, self._bulk):
            self._instruments.read_queue_depth(lane.name, lane.__len__)

    def _verifier(self) -> Verifier:
        return Verifier(
            self._upkeep,
            share=self._settings.verify_share,
            is_idle=lambda: not len(self._short) and not len(self._bulk),
            examiners=self._examiners,
            instruments=self._instruments,
        )

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
        """Serve `model` with `tokenizer` from now on, in place of the one before. Every thread is warmed with it.

        Its shortcuts are compared with it in the background, about a second, and used from then on.
        """
        self._models.register(model, tokenizer)

    async def wait_admitted(self, model: str) -> None:
        """Return when it is decided which shortcuts the tokenizer of `model` may take. Raises ModelNotFoundError."""
        await make_async(self._models.encoder(model).is_decided.wait)()

    async def load(self, model: str, path: str | Path, *, keeps_reference: bool = True) -> Tokenizer:
        """Load the tokenizer in `path` in a thread and register it. Raises TokenizationError naming the path.

        Without `keeps_reference` an examiner compares the shortcuts, and the reference is in this process only while
        nothing else may encode, or from when it has to decode: for those who encode only, with less memory.
        """
        if keeps_reference or self._settings.encoder == "reference":
            tokenizer = await make_async(load_tokenizer)(path, offline=self._settings.offline)
            self.register(model, tokenizer)
        else:
            tokenizer, examination = await make_async(self._models.load_deferred)(path)
            self._models.register(model, tokenizer, examination=examination)
        if self._settings.num_processes and Path(path).exists():  # noqa: ASYNC240 - one stat of a local file
            self._processes.register(tokenizer, path)
        if self._settings.encoder == "fastokens":
            await self.wait_admitted(model)
            encoder = self._models.encoder(model)
            if not encoder.is_accelerated:
                raise TokenizationError(
                    f"fastokens cannot serve {tokenizer.name}: {encoder.encoder_reason}; set encoder to auto"
                )
        return tokenizer

    def tokenizer(self, model: str) -> Tokenizer:
        """The tokenizer of `model`. Raises ModelNotFoundError."""
        return self._models.encoder(model).reference

    @overload
    async def encode(
        self,
        prompt: str | ChatPrompt,
        *,
        model: str,
        add_special_tokens: bool = True,
        max_tokens: int | None = None,
        on_saturation: Literal["wait"] = "wait",
    ) -> Encoded: ...

    @overload
    async def encode(
        self,
        prompt: str | ChatPrompt,
        *,
        model: str,
        add_special_tokens: bool = True,
        max_tokens: int | None = None,
        on_saturation: Literal["bail"],
    ) -> Encoded | Saturated: ...

    async def encode(
        self,
        prompt: str | ChatPrompt,
        *,
        model: str,
        add_special_tokens: bool = True,
        max_tokens: int | None = None,
        on_saturation: Literal["wait", "bail"] = "wait",
    ) -> Encoded | Saturated:
        """The token ids of `prompt`, exactly as the reference tokenizer gives them.

        A prompt that cannot have as few as `max_tokens` is refused unseen; one that might is encoded, and its caller
        counts. With `bail` the answer is Saturated where the caller would have to wait for many others.

        Raises ModelNotFoundError, InvalidRequestError (not valid Unicode; the chat template refuses),
        ContextLengthError, OverloadedError (queue full, service closed), PayloadTooLargeError, TokenizationError. A
        cancelled caller frees its place.
        """
        at_once = self.encode_now(prompt, model=model, add_special_tokens=add_special_tokens, max_tokens=max_tokens)
        if at_once is not None:
            return at_once
        encoder = self._models.encoder(model)
        if isinstance(prompt, ChatPrompt):
            text, add_special_tokens = await self._render(prompt, encoder.reference), False
        else:
            text = prompt
        if max_tokens is not None:
            _refuse_hopeless(text, encoder.reference, max_tokens=max_tokens)
        encoded = await self._texts.encode(
            text,
            encoder,
            model=model,
            add_special_tokens=add_special_tokens,
            can_bail=on_saturation == "bail",
        )
        if isinstance(encoded, Encoded):
            count_content(self._instruments, encoded, prompt, model=model, num_chars=len(text))
        return encoded

    def encode_now(
        self,
        prompt: str | ChatPrompt,
        *,
        model: str,
        add_special_tokens: bool = True,
        max_tokens: int | None = None,
    ) -> Encoded | None:
        """What `encode` gives where nobody need wait for it: a short prompt, while this round of the loop has room for
        it. None: await `encode`. To be called in the loop; raises as `encode` does."""
        if asyncio.get_running_loop() is not self._loop:
            self._bind_loop()
        if self._is_closing:
            raise OverloadedError("the tokenization service is closed; try again elsewhere")
        encoder = self._models.encoder(model)
        if isinstance(prompt, str):
            if max_tokens is not None:
                _refuse_hopeless(prompt, encoder.reference, max_tokens=max_tokens)
            return self._texts.encode_at_once(prompt, encoder, model, add_special_tokens, OTHER, 0)
        num_chars = _num_chars_of(prompt)
        if not self._texts.has_room(num_chars, encoder) or self._is_long(prompt, num_chars):
            return None
        text = _render_of(prompt, encoder.reference)()
        if max_tokens is not None:
            _refuse_hopeless(text, encoder.reference, max_tokens=max_tokens)
        return self._texts.encode_at_once(text, encoder, model, False, CONVERSATION, num_system_chars(prompt))

    def _is_long(self, prompt: ChatPrompt, num_chars: int) -> bool:
        """Whether to render it would hold the loop."""
        return _weight_of(prompt, num_chars) > self._settings.render_threshold

    def _bind_loop(self) -> None:
        """Flights belong to one loop; when that has closed, another may follow it."""
        if self._loop is not None and not self._loop.is_closed():
            raise RuntimeError(f"{self!r} serves another event loop; make one service for each loop")
        self._loop = asyncio.get_running_loop()
        self._texts.follow_loop()

    async def _render(self, prompt: ChatPrompt, tokenizer: Tokenizer) -> str:
        render = _render_of(prompt, tokenizer)
        num_chars = _num_chars_of(prompt)
        if not self._is_long(prompt, num_chars):
            return render()
        return (await self._texts.lane_for(num_chars).submit(MakeTexts(), render, num_bytes=num_chars)).value

    async def decode(
        self, token_ids: Sequence[int] | TokenIds, *, model: str, skip_special_tokens: bool = False
    ) -> str:
        """The text of `token_ids`. Raises as `encode` does."""
        tokenizer = self.tokenizer(model)
        decode = partial(tokenizer.decode, token_ids, skip_special_tokens=skip_special_tokens)
        if len(token_ids) <= _MAX_INLINE_TOKENS and is_at_hand(tokenizer):
            return decode()
        num_bytes = 4 * len(token_ids)
        return (await self._texts.lane_for(num_bytes).submit(MakeTexts(), decode, num_bytes=num_bytes)).value

    @property
    def instruments(self) -> Instruments:
        """What the service has counted."""
        return self._instruments

    def statistics(self) -> TokenizationStatistics:
        return TokenizationStatistics(
            num_models=len(self._models),
            num_flights=self._texts.num_flights,
            lanes=(self._short.statistics(), self._bulk.statistics()),
            processes=self._processes.statistics(),
            local_fallback=self._fallback.statistics(),
            cache=self._texts.records.statistics(),
        )

    async def aclose(self) -> None:
        """End the threads; everybody who waits gets OverloadedError. Idempotent. Encoding after it is refused alike."""
        self._is_closing = True
        self._models.close()
        self._examiners.close()
        lanes = (self._short, self._bulk, self._upkeep, self._processes)
        for lane in lanes:
            lane.close()
        for lane in lanes:
            await lane.aclose(timeout_s=self._settings.close_timeout_s)
        await make_async(self._examiners.finish_all)()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"TokenizationService({self._models!r}; short={self._short!r}, bulk={self._bulk!r})"


def _render_of(prompt: ChatPrompt, tokenizer: Tokenizer) -> Callable[[], str]:
    template = tokenizer.chat_template
    if template is None:
        raise InvalidRequestError(
            f"the tokenizer {tokenizer.name} has no chat template; use /v1/completions", param="messages"
        )
    return partial(
        template.render,
        prompt.messages,
        tools=prompt.tools,
        add_generation_prompt=prompt.add_generation_prompt,
        continue_final_message=prompt.continue_final_message,
        template_kwargs=prompt.template_kwargs,
    )


def _num_chars_of(prompt: ChatPrompt) -> int:
    if prompt.tools is None and prompt.template_kwargs is None:
        return num_text_chars(prompt.messages)
    return num_text_chars([*prompt.messages, *(prompt.tools or ()), prompt.template_kwargs or {}])


def _weight_of(prompt: ChatPrompt, num_chars: int) -> int:
    """How long rendering takes, in characters that are only copied."""
    weight = num_chars + _MESSAGE_CHARS * len(prompt.messages)
    return weight if prompt.tools is None else weight + _TOOL_CHARS * num_text_chars(prompt.tools)


def _refuse_hopeless(text: str, tokenizer: Tokenizer, *, max_tokens: int) -> None:
    num_tokens = min_num_tokens(text, max_token_bytes=tokenizer.max_token_bytes)
    if num_tokens > max_tokens:
        raise ContextLengthError(
            f"the prompt of {len(text)} characters has at least {num_tokens} tokens, more than the {max_tokens} that "
            "fit; shorten it",
            param="prompt",
        )


def _process_settings(settings: TokenizationSettings) -> ProcessLaneSettings:
    return ProcessLaneSettings(
        num_processes=settings.num_processes,
        max_text=settings.process_max_text,
        permits_per_process=settings.process_permits,
    )


def _default_num_threads() -> int:
    return max(1, min(4, num_cores() // 2))
