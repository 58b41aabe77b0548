"""Requests on their way into the core and out again: checked, counted, tokenized, sent; told of each step; ended.

Knows the live requests and the client that reaches the core, not how the engine starts or ends.
"""

import asyncio
import contextlib
import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from headrace.engine.client.core_client import copy_of
from headrace.engine.client.core_connection import CoreConnection
from headrace.engine.embedding_outputs import EmbeddingRequestOutput
from headrace.engine.front.embedding_progress import EmbeddingProgress
from headrace.engine.front.input_processor import InputProcessor, PreparedPrompt
from headrace.engine.front.live_request import LiveRequest
from headrace.engine.front.output_processor import OutputProcessor
from headrace.engine.front.parallel_sampling import fan_out, open_progress
from headrace.engine.front.request_call import RequestCall
from headrace.engine.front.request_observer import RequestObserver
from headrace.engine.front.request_stream import RequestStream
from headrace.engine.outputs import RequestOutput
from headrace.engine.pooling_params import PoolingParams
from headrace.engine.sampling_params import SamplingParams
from headrace.engine.wire.messages import AddRequest, TokenDelta
from headrace.errors import EngineDeadError, OverloadedError

OpenState: TypeAlias = Literal["waiting", "running"]


@dataclass(slots=True)
class _Open:
    """What is remembered of an open request for those who are told of its end."""

    call: RequestCall
    params: SamplingParams | PoolingParams
    is_queued: bool = False


class RequestIntake:
    """Every open request of one engine. `connect` comes before the first `add`. Belongs to one event loop."""

    def __init__(self, inputs: InputProcessor, *, observer: RequestObserver, max_num_requests: int) -> None:
        self._inputs = inputs
        self._observer = observer
        self._max_num_requests = max_num_requests
        self._outputs = OutputProcessor(
            on_left=self._note_end, on_tokens=observer.note_tokens, on_moved=self._note_moved
        )
        self._running: set[str] = set()
        """Core ids."""
        self._open: dict[str, _Open] = {}
        """By core id."""
        self._client: CoreConnection | None = None
        self._core_numbers = itertools.count()
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._epoch_s = time.time() - time.monotonic()

    def __len__(self) -> int:
        return len(self._outputs)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"<RequestIntake {len(self)} of {self._max_num_requests} requests>"

    def connect(self, client: CoreConnection) -> None:
        """The core that requests go to from now on."""
        self._client = client

    async def add(self, call: RequestCall, params: SamplingParams) -> RequestStream[RequestOutput]:
        """Queue a request for an answer. Cancelled meanwhile, it leaves nothing behind."""
        self._check(call, params)
        stream = RequestStream[RequestOutput]()
        progress = open_progress(
            request_id=call.request_id,
            core_id=self._next_core_id(call),
            params=params,
            arrival_time=self._arrival_time(call),
            notify=stream.notify,
        )
        stream.attach(progress, on_close=lambda: self._leave(progress))
        with self._opened(progress, call, params):
            prompt = await self._inputs.prepare(call.prompt, prompt_token_ids=call.prompt_token_ids)
            for completion in progress.children:
                completion.set_prompt(
                    prompt.text,
                    token_ids=prompt.token_ids,
                    decoder=self._inputs.decoder(params, prompt.token_ids),
                    eos_token_ids=self._inputs.eos_token_ids(),
                    token_text=self._inputs.token_text,
                )
            request = self._inputs.core_request(
                progress.core_id,
                prompt,
                params,
                arrival_time=progress.times.arrival,
                priority=call.priority,
                lora=call.lora_request,
                bad_words=await self._inputs.bad_words(params),
            )
            await self._queue(progress, prompt, fan_out(request))
        return stream

    async def add_embedding(self, call: RequestCall, params: PoolingParams) -> RequestStream[EmbeddingRequestOutput]:
        """Queue a request for a vector. Cancelled meanwhile, it leaves nothing behind."""
        self._check(call, params)
        stream = RequestStream[EmbeddingRequestOutput]()
        progress = EmbeddingProgress(
            request_id=call.request_id,
            core_id=self._next_core_id(call),
            arrival_time=self._arrival_time(call),
            notify=stream.notify,
        )
        stream.attach(progress, on_close=lambda: self._leave(progress))
        with self._opened(progress, call, params):
            prompt = await self._inputs.prepare(call.prompt, prompt_token_ids=call.prompt_token_ids, has_answer=False)
            progress.set_prompt(prompt.token_ids)
            request = self._inputs.embedding_request(
                progress.core_id,
                prompt,
                params,
                arrival_time=progress.times.arrival,
                priority=call.priority,
                lora=call.lora_request,
            )
            await self._queue(progress, prompt, [request])
        return stream

    async def abort(self, request_ids: Iterable[str]) -> None:
        """End these requests; returns when the core has freed their blocks. Unknown and ended ones are ignored."""
        core_ids = self._outputs.abort(request_ids, now=self.now())
        self._observer.publish()
        if core_ids and self._client is not None:
            with contextlib.suppress(EngineDeadError):  # a dead core holds no blocks
                await self._client.abort(core_ids)

    def abort_all(self) -> None:
        """End every request for its consumer; the core is about to end too and is not told."""
        self._outputs.abort_all(now=self.now())
        self._observer.publish()

    def fail_all(self, error: EngineDeadError) -> None:
        """End every request with an error of its own that says what `error` says."""
        self._outputs.fail_all(lambda: copy_of(error), now=self.now())
        self._observer.publish()

    def apply(self, deltas: Sequence[TokenDelta]) -> None:
        """Hand one step's outcome to its requests."""
        if to_abort := self._outputs.apply(deltas, now=self.now()):
            self._core.post_abort(to_abort)
        self._observer.publish()

    async def wait_idle(self) -> None:
        """Returns when no request is open."""
        await self._is_idle.wait()

    def state(self, request_id: str) -> OpenState | None:
        """Whether an open request runs, or one of its answers does; None for one that is not open.

        The core's word: it runs from the step that computes its first tokens, and waits again after a preemption.
        """
        core_ids = self._outputs.core_ids(request_id)
        if core_ids is None:
            return None
        return "waiting" if self._running.isdisjoint(core_ids) else "running"

    def lora_names(self) -> tuple[str, ...]:
        """The adapters that open requests use, each once."""
        used = (request.call.lora_request for request in self._open.values())
        return tuple(sorted({lora.lora_name for lora in used if lora is not None}))

    def now(self) -> float:
        """Seconds since the epoch that never jump back, as the monotonic clock runs."""
        return self._epoch_s + time.monotonic()

    @property
    def _core(self) -> CoreConnection:
        assert self._client is not None
        return self._client

    def _check(self, call: RequestCall, params: SamplingParams | PoolingParams) -> None:
        self._inputs.check(
            call.request_id,
            params,
            priority=call.priority,
            lora=call.lora_request,
            arrival_time=call.arrival_time,
        )
        limit = self._max_num_requests
        if len(self._outputs) >= limit:
            raise OverloadedError(f"{limit} requests are open, as many as max_num_requests allows; try again later")

    def _next_core_id(self, call: RequestCall) -> str:
        return f"{call.request_id}#{next(self._core_numbers)}"

    def _arrival_time(self, call: RequestCall) -> float:
        return self.now() if call.arrival_time is None else float(call.arrival_time)

    @contextlib.contextmanager
    def _opened(
        self, request: LiveRequest, call: RequestCall, params: SamplingParams | PoolingParams
    ) -> Iterator[None]:
        """The request is open from now on; an error in the block, or its cancellation, ends it without a trace."""
        self._outputs.add(request)
        self._open[request.core_id] = _Open(call, params)
        self._is_idle.clear()
        try:
            yield
        except BaseException:
            self._leave(request)
            raise

    async def _queue(self, request: LiveRequest, prompt: PreparedPrompt, messages: Sequence[AddRequest]) -> None:
        """Send the core a message for each of the request's answers."""
        if request.is_finished:  # somebody aborted it while it was tokenized
            return
        opened = self._open[request.core_id]
        self._observer.note_queued(opened.call, prompt, num_answers=len(messages))
        for message in messages:
            await self._core.add(message)
            opened.is_queued = True
            if request.core_id not in self._open:  # aborted meanwhile, which the core is to hear of after the request
                self._core.post_abort([message.request_id])
                return

    def _leave(self, request: LiveRequest) -> None:
        """The consumer is gone, or has never come to be."""
        opened = self._open.get(request.core_id)
        core_ids = self._outputs.discard(request)
        if core_ids and opened is not None and opened.is_queued:
            self._core.post_abort(core_ids)

    def _note_moved(self, core_id: str, is_running: bool) -> None:
        if is_running:
            self._running.add(core_id)
        else:
            self._running.discard(core_id)

    def _note_end(self, request: LiveRequest) -> None:
        self._running.difference_update(request.core_ids)
        opened = self._open.pop(request.core_id)
        if opened.is_queued or request.is_finished:  # else it was refused, or never came to be
            self._observer.note_end(request, opened.call, opened.params, now=self.now())
        if len(self._outputs) == 0:
            self._is_idle.set()
