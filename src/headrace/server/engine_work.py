"""From a checked request to its answer: hand the prompts to the engine, send what comes back, abort what is not
wanted any more. Knows neither bodies nor routes."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from headrace.engine.outputs import RequestOutput, TokensPrompt
from headrace.engine.sampling_params import SamplingParams
from headrace.openai.schema.usage import Usage
from headrace.server.engine_seam import EnginePrompt, OutputStream
from headrace.server.generation_api import Choice, Chunks, Prompt
from headrace.server.ready_outputs import Batch, ready_outputs
from headrace.server.serving import Serving
from headrace.server.streaming import EventStream, finished_choices
from headrace.server.tally import Tally
from headrace.server.writer import Writer


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineWork:
    """What the engine is to do for one HTTP request."""

    request_ids: Sequence[str]
    """One for each prompt."""
    prompts: Sequence[Prompt]
    params: SamplingParams
    model: str | None
    """As the client named it: an adapter's name asks for the adapter."""
    priority: int
    answer_id: str
    """What the client, and /abort, call all of it."""
    cache_salt: str | None = None
    """Only requests with the same one share what the prefix cache holds."""
    trace_headers: Mapping[str, str] | None = None
    """The client's place in a trace."""

    async def stream(self, serving: Serving, writer: Writer, chunks: Chunks) -> None:
        """Send events as the answer grows; see `EventStream.send` for errors. Cancelled, it aborts the work."""
        tally = Tally(num_generations=len(self.prompts))
        events = EventStream(writer, chunks, tally, num_each=self.params.n)
        # A grammar is compiled later, and refused with a status when it is none.
        may_begin = chunks.begins_early and self.params.structured_outputs is None
        async with self._outputs(serving) as batches:
            await events.send(batches, begins_early_with=len(self.prompts[0]) if may_begin else None)

    async def finish(
        self, serving: Serving, writer: Writer, encode: Callable[[Sequence[Choice], Usage], Awaitable[bytes]]
    ) -> None:
        """Send the whole answer, as `encode` writes it. Cancelled, it aborts the work."""
        tally = Tally(num_generations=len(self.prompts))
        async with self._outputs(serving) as batches:
            choices = await finished_choices(batches, tally, num_each=self.params.n)
            await writer.send_json(await encode(choices, tally.usage()))

    @contextlib.asynccontextmanager
    async def _outputs(self, serving: Serving) -> AsyncIterator[AsyncIterator[Batch]]:
        """Those of every prompt, once the engine has taken them all. Leaving the block aborts what has not ended."""
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(serving.live.generating(self.request_ids, answer_id=self.answer_id))
            streams: list[OutputStream[RequestOutput]] = []
            for prompt, request_id in zip(self.prompts, self.request_ids, strict=True):
                stream = await self._add(serving, prompt, request_id)
                stack.push_async_callback(stream.aclose)
                streams.append(stream)
            yield await stack.enter_async_context(contextlib.aclosing(ready_outputs(streams)))

    async def _add(self, serving: Serving, prompt: Prompt, request_id: str) -> OutputStream[RequestOutput]:
        salted: EnginePrompt = prompt
        if self.cache_salt is not None:
            salted = TokensPrompt(prompt_token_ids=prompt, cache_salt=self.cache_salt)
        return await serving.engine.add_request(
            request_id,
            salted,
            self.params,
            lora_request=serving.adapter_of(self.model),
            trace_headers=self.trace_headers,
            priority=self.priority,
        )
