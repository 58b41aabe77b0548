"""From a checked request to its answer: hand the prompts to the engine, send what comes back, abort what is not
wanted any more. Knows neither bodies nor routes."""

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass

from headrace.engine.outputs import RequestOutput
from headrace.engine.sampling_params import SamplingParams
from headrace.openai.schema.usage import Usage
from headrace.server.generation_api import Choice, Chunks, Prompt
from headrace.server.ready_outputs import ready_outputs
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

    async def stream(self, serving: Serving, writer: Writer, chunks: Chunks) -> None:
        """Send events as the answer grows; see `EventStream.send` for errors. Cancelled, it aborts the work."""
        tally = Tally(num_generations=len(self.prompts))
        with serving.live.generating(self.request_ids):
            async with contextlib.aclosing(ready_outputs(self._streams(serving))) as batches:
                await EventStream(writer, chunks, tally, num_each=self.params.n).send(batches)

    async def finish(
        self, serving: Serving, writer: Writer, encode: Callable[[Sequence[Choice], Usage], Awaitable[bytes]]
    ) -> None:
        """Send the whole answer, as `encode` writes it. Cancelled, it aborts the work."""
        tally = Tally(num_generations=len(self.prompts))
        with serving.live.generating(self.request_ids):
            async with contextlib.aclosing(ready_outputs(self._streams(serving))) as batches:
                choices = await finished_choices(batches, tally, num_each=self.params.n)
                await writer.send_json(await encode(choices, tally.usage()))

    def _streams(self, serving: Serving) -> list[AsyncGenerator[RequestOutput, None]]:
        return [
            serving.engine.generate(
                prompt,
                self.params,
                request_id,
                lora_request=serving.adapter_of(self.model),
                priority=self.priority,
            )
            for prompt, request_id in zip(self.prompts, self.request_ids, strict=True)
        ]
